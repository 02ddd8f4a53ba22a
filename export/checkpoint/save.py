"""Writing any checkpoint as a Hugging Face folder, so that other engines can be held against this kit."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from lite_runtime.errors import UsageError

from .base import CHUNK, Checkpoint
from .config import tensor_shapes
from .file_kinds import to_json

_DTYPES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2)}


def write_hf_folder(
    checkpoint: Checkpoint, path: Path | str, dtype: str = "float32", max_shard_bytes: int = 4 << 30
) -> None:
    """Write config, tokenizer files and safetensors to the new folder `path`, one tensor in memory at a time.

    dtype: float32 or bfloat16 (rounded to nearest even). Above `max_shard_bytes`: shards and an index.
    """
    path = Path(path)
    if dtype not in _DTYPES:
        raise UsageError(f"dtype {dtype!r} is not known; expected one of {', '.join(_DTYPES)}")
    if path.exists():
        raise UsageError(f"{path}: is already there; choose a new folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    try:
        for name, content in checkpoint.files.items():
            (partial / name).write_bytes(content)
        config = json.loads(checkpoint.files["config.json"])
        config["torch_dtype"] = dtype
        (partial / "config.json").write_bytes(to_json(config))
        _write_shards(checkpoint, partial, dtype, max_shard_bytes)
        os.rename(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write_shards(checkpoint: Checkpoint, folder: Path, dtype: str, max_shard_bytes: int) -> None:
    item_bytes = _DTYPES[dtype][1]
    sizes = {name: math.prod(shape) * item_bytes for name, shape in tensor_shapes(checkpoint.config).items()}
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    if len(shards) == 1:
        _write_file(checkpoint, shards[0], folder / "model.safetensors", dtype)
        return
    weight_map = {}
    for i, names in enumerate(shards, 1):
        file_name = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        _write_file(checkpoint, names, folder / file_name, dtype)
        weight_map.update({name: file_name for name in names})
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_bytes(to_json(index))


def _write_file(checkpoint: Checkpoint, names: list[str], path: Path, dtype: str) -> None:
    shapes = tensor_shapes(checkpoint.config)
    label, item_bytes = _DTYPES[dtype]
    header: dict = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in names:
        end = offset + math.prod(shapes[name]) * item_bytes
        header[name] = {"dtype": label, "shape": list(shapes[name]), "data_offsets": [offset, end]}
        offset = end
    raw_header = json.dumps(header).encode("utf-8")
    raw_header += b" " * (-len(raw_header) % 8)
    with open(path, "wb") as file:
        file.write(len(raw_header).to_bytes(8, "little") + raw_header)
        for name in names:
            flat = checkpoint.tensor(name).reshape(-1)
            for start in range(0, flat.size, CHUNK):
                part = flat[start : start + CHUNK]
                encoded = to_bf16_bits(part) if dtype == "bfloat16" else part.astype("<f4", copy=False)
                file.write(encoded.tobytes())


def to_bf16_bits(values: np.ndarray) -> np.ndarray:
    """The upper 16 bits of finite float32 values, rounded to nearest even, as little-endian uint16."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
