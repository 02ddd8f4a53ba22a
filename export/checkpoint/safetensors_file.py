"""Reading one .safetensors file without torch: every offset checked at open, tensors read one at a time.

Format (https://github.com/huggingface/safetensors): u64 header bytes · JSON {name: {dtype, shape,
data_offsets: [begin, end]}} · data, little-endian, offsets relative to its start, no holes.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lite_runtime.errors import FileFormatError, UnsupportedError

from .base import CHUNK
from .file_kinds import reject_impostor

MAX_HEADER_BYTES = 100_000_000
_FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies; `dtype` as the format spells it ("BF16")."""

    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    n_bytes: int


class SafetensorsFile:
    """The tensors of one file: `entries` by name, `read(name)` for the values."""

    def __init__(self, path: Path):
        reject_impostor(path)
        self.path = path
        self.entries = _read_entries(path)

    def read(self, name: str) -> np.ndarray:
        """Float32 array; bf16 and fp16 are widened a chunk at a time."""
        entry = self.entries[name]
        if entry.dtype not in _FLOAT_BYTES:
            raise UnsupportedError(
                f"{self.path}: tensor {name} has dtype {entry.dtype}; expected {', '.join(_FLOAT_BYTES)}"
            )
        values = np.empty(math.prod(entry.shape), np.float32)
        with open(self.path, "rb") as file:
            file.seek(entry.offset)
            for start in range(0, values.size, CHUNK):
                out = values[start : start + CHUNK]
                raw = file.read(out.size * _FLOAT_BYTES[entry.dtype])
                if entry.dtype == "BF16":
                    np.left_shift(np.frombuffer(raw, "<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)
                else:
                    out[:] = np.frombuffer(raw, "<f4" if entry.dtype == "F32" else "<f2")
        return values.reshape(entry.shape)


def _read_entries(path: Path) -> dict[str, TensorEntry]:
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if size < 8 or header_bytes > min(size - 8, MAX_HEADER_BYTES):
            raise FileFormatError(
                f"{path}: not a safetensors file, or cut inside its header "
                f"(header of {header_bytes} bytes, file of {size})"
            )
        raw_header = file.read(header_bytes)
    try:
        header = json.loads(raw_header)
        header.pop("__metadata__", None)
        described = {name: _entry(item, 8 + header_bytes) for name, item in header.items()}
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise FileFormatError(
            f"{path}: damaged safetensors header ({type(error).__name__}: {error})"
        ) from None

    end = 8 + header_bytes
    for name, entry in sorted(described.items(), key=lambda item: (item[1].offset, item[1].n_bytes)):
        if entry.offset != end:
            raise FileFormatError(f"{path}: tensor {name} begins at byte {entry.offset}, expected {end}")
        end += entry.n_bytes
        item_bytes = _FLOAT_BYTES.get(entry.dtype)
        if item_bytes and entry.n_bytes != math.prod(entry.shape) * item_bytes:
            raise FileFormatError(
                f"{path}: tensor {name} has {entry.n_bytes} bytes, but is {entry.dtype} {list(entry.shape)}"
            )
    if end > size:
        raise FileFormatError(
            f"{path}: cut short: its header describes {end} bytes, the file has {size}; download it again"
        )
    if end < size:
        raise FileFormatError(f"{path}: {size - end} bytes follow the last tensor; the file is damaged")
    return described


def _entry(item: dict, data_start: int) -> TensorEntry:
    begin, end = item["data_offsets"]
    numbers = [begin, end, *item["shape"]]
    if not all(type(number) is int and number >= 0 for number in numbers) or end < begin:
        raise ValueError(f"shape {item['shape']}, offsets {item['data_offsets']}")
    return TensorEntry(str(item["dtype"]), tuple(item["shape"]), data_start + begin, end - begin)
