"""Writes a `.nb` file tensor by tensor, each tensor's data at a multiple of 64 bytes in the file.

A tensor's FlatBuffer is laid out by hand with its data vector last, so the payload streams straight to the
file: peak memory is one chunk. The padding before the FlatBuffer, which the format leaves free, puts the
payload on its boundary.
"""

from __future__ import annotations

import os
import secrets
import struct
from typing import Callable, Optional

import numpy as np

from edge_kit.nb import format as nb
from edge_kit.nb.bundle import model_digest, write_bundle
from edge_kit.nb.program import Program, encode
from edge_kit.nb.reader import NbFile
from lite_runtime.errors import UsageError

# Offsets inside the FlatBuffer of a ParamDesc, all relative to its start. Forward offsets are unsigned, so
# everything a table points to lies behind it; a vtable may lie before its table.
_PARAM_VTABLE = struct.Struct("<HHHHHH")  # bytes, table bytes, then the slots of ParamDesc
_TENSOR_VTABLE = struct.Struct("<HHHHHHH")  # bytes, table bytes, then the slots of ParamTensor
_PARAM_VTABLE_AT = 4
_PARAM_AT = 16
_TENSOR_VTABLE_AT = 32
_TENSOR_AT = 48
_NAME_AT = 72
_RECORD_EXTRA = 1024
_CHUNK_BYTES = 1 << 24


def param_prefix(name: str, dtype: str, shape: tuple, nbytes: int) -> bytes:
    """The ParamDesc FlatBuffer up to and with the data vector's length; the data follows directly."""
    text = name.encode("utf-8")
    lod_at = _NAME_AT + 4 + len(text) + 1
    lod_at += -lod_at % 4
    dim_at = lod_at + 4
    dim_at += (4 - dim_at) % 8  # the int64 sizes behind the length lie on 8 bytes
    data_at = dim_at + 4 + 8 * len(shape)
    prefix = bytearray(data_at + 4)
    put = struct.pack_into
    put("<I", prefix, 0, _PARAM_AT)
    # ParamDesc: [vtable, name, variable, variable_type]; no version, as in the files that opt writes.
    _PARAM_VTABLE.pack_into(prefix, _PARAM_VTABLE_AT, _PARAM_VTABLE.size, 13, 0, 4, 12, 8)
    put(
        "<iIIB",
        prefix,
        _PARAM_AT,
        _PARAM_AT - _PARAM_VTABLE_AT,
        _NAME_AT - _PARAM_AT - 4,
        _TENSOR_AT - _PARAM_AT - 8,
        nb.ParamDesc.LOD_TENSOR,
    )
    # LoDTensorDesc: [vtable, lod, dim, data_type, data].
    _TENSOR_VTABLE.pack_into(prefix, _TENSOR_VTABLE_AT, _TENSOR_VTABLE.size, 20, 0, 4, 8, 12, 16)
    put(
        "<iIIiI",
        prefix,
        _TENSOR_AT,
        _TENSOR_AT - _TENSOR_VTABLE_AT,
        lod_at - _TENSOR_AT - 4,
        dim_at - _TENSOR_AT - 8,
        int(nb.ELEMENT_TYPES[dtype]),
        data_at - _TENSOR_AT - 16,
    )
    put("<I", prefix, _NAME_AT, len(text))
    prefix[_NAME_AT + 4 : _NAME_AT + 4 + len(text)] = text
    put(f"<I{len(shape)}q", prefix, dim_at, len(shape), *shape)
    put("<I", prefix, data_at, nbytes)
    return bytes(prefix)


def _chunks(name: str, dtype: str, data):
    """The pieces of an array or of an iterable of arrays or bytes, as byte views of bounded size."""
    pieces = [data] if isinstance(data, (np.ndarray, bytes, bytearray, memoryview)) else data
    for piece in pieces:
        if isinstance(piece, np.ndarray):
            if piece.dtype != dtype:
                raise UsageError(f"tensor {name}: declared as {dtype}, given as {piece.dtype}")
            piece = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
        view = memoryview(piece).cast("B")
        for start in range(0, len(view), _CHUNK_BYTES):
            yield view[start : start + _CHUNK_BYTES]


class NbWriter:
    """Writes beside `path` and renames at the end of the `with` block; on any error nothing is left.

        with NbWriter("model.nb", program, "v2.13-rc") as writer:
            writer.add("linear_0.w_0", "int8", (96, 24, 16, 4), tiles)

    `program` is a Program or an encoded one (bytes). Stock Paddle Lite reads the tensors in the order of the
    file and looks them up by name; opt writes them sorted by name. Every persistable variable of the program
    must be added (the feed and fetch lists apart), and nothing twice. `bundle`, if given, is called with the
    model's digest (see bundle.model_digest) when all tensors are there and returns the bundle's files.
    """

    def __init__(self, path, program, opt_version: str, bundle: Optional[Callable[[str], dict]] = None):
        self.path = os.fspath(path)
        self._bundle = bundle
        self._partial = f"{self.path}.{secrets.token_hex(4)}.partial"  # two at once stay apart
        version = opt_version.encode("ascii")
        if len(version) >= nb.OPT_VERSION_BYTES:
            raise UsageError(f"opt version {opt_version!r} has {len(version)} characters; at most 15 fit")
        encoded = encode(program) if isinstance(program, Program) else program
        self._names: set = set()
        self._largest = 0
        try:
            self._file = open(self._partial, "xb")
        except OSError as error:
            raise self._cannot_write(error) from None
        try:
            self._write(nb.FILE_HEADER.pack(nb.META_VERSION, version, len(encoded)))
            self._write(encoded)
            self._params_header_at = self._file.tell()
            self._write(bytes(nb.PARAMS_HEADER.size))
        except BaseException:
            self.abort()
            raise

    def add(self, name: str, dtype: str, shape, data) -> None:
        """Appends a tensor. `data` is an array, bytes, or an iterable of them, in row-major order, which
        together hold exactly the bytes that dtype (NumPy's name) and shape ask for."""
        if dtype not in nb.ELEMENT_TYPES:
            raise UsageError(f"tensor {name}: a .nb file has no element type {dtype}")
        if name in self._names:
            raise UsageError(f"tensor {name}: added twice")
        if len(self._names) == nb.MAX_TENSORS:
            raise UsageError(f"tensor {name}: a .nb file holds at most {nb.MAX_TENSORS} tensors")
        shape = tuple(int(size) for size in shape)
        nbytes = nb.ELEMENT_SIZES[dtype]
        for size in shape:
            nbytes *= size
        needs = f"tensor {name}: {dtype} {list(shape)} takes {nbytes} bytes"
        # Headers and padding of the record take a little of the 4 GiB too.
        if nbytes > nb.MAX_RECORD_BYTES - _RECORD_EXTRA - len(name.encode()):
            raise UsageError(f"{needs}; a .nb file allows 4 GiB")
        self._write_prefix(param_prefix(name, dtype, shape, nbytes), nbytes)
        written = 0
        for chunk in _chunks(name, dtype, data):
            written += len(chunk)
            if written <= nbytes:
                self._write(chunk)
        if written != nbytes:
            raise UsageError(f"{needs}, {written} were given")
        self._write(bytes(-nbytes % 4))  # the next record's sizes then lie on 4 bytes
        self._names.add(name)
        self._largest = max(self._largest, nbytes)

    def _write_prefix(self, prefix: bytes, nbytes: int) -> None:
        """The record up to its payload, padded so that the payload starts on its boundary."""
        padding = -(self._file.tell() + nb.RECORD_HEADER.size + len(prefix)) % nb.ALIGNMENT
        offset = 4 + padding
        total = offset + len(prefix) + nbytes + -nbytes % 4
        self._write(nb.RECORD_HEADER.pack(total, offset) + bytes(padding) + prefix)

    def _write(self, data) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise self._cannot_write(error) from None

    def _cannot_write(self, error: OSError) -> UsageError:
        return UsageError(f"{self.path}: cannot be written: {error.strerror}")

    def close(self) -> None:
        """Patches the counts, opens the result as a reader would, appends the bundle and renames."""
        try:
            self._file.seek(self._params_header_at)
            self._file.write(
                nb.PARAMS_HEADER.pack(0, 0, nb.PARAMS_HEADER_BYTES, len(self._names), self._largest)
            )
            self._file.close()
            if self._bundle is None:
                NbFile(self._partial).close()
            else:
                write_bundle(self._partial, self._bundle(model_digest(self._partial)))
            os.replace(self._partial, self.path)
        except OSError as error:
            self.abort()
            raise self._cannot_write(error) from None
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Gives up: removes what was written."""
        try:
            self._file.close()
        except OSError:
            pass  # what was still buffered does not fit either
        if os.path.exists(self._partial):
            os.remove(self._partial)

    def __enter__(self) -> NbWriter:
        return self

    def __exit__(self, kind, error, trace) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
