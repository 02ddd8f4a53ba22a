"""A `.nb` file, mapped and checked as a whole when it is opened."""

from __future__ import annotations

import mmap
import os
import stat
from collections import OrderedDict
from typing import NamedTuple, Optional

import numpy as np

from edge_kit.nb import format as nb
from edge_kit.nb.errors import (
    DamagedNbFile,
    MissingTensor,
    NotAnNbFile,
    TruncatedNbFile,
    UnsupportedNbFile,
)
from edge_kit.nb.flat import Buffer
from edge_kit.nb.format import VarType
from edge_kit.nb.program import Program, decode, element_name
from edge_kit.nb.signature import name_content
from lite_runtime.errors import FileFormatError

MAX_DIMS = 16


class TensorInfo(NamedTuple):
    """Where a parameter lies. `dtype` is NumPy's name, `offset` counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def aligned(self) -> bool:
        """Whether the data starts at a multiple of 64 bytes, as kernels that read the mapping want it."""
        return self.offset % nb.ALIGNMENT == 0


class NbFile:
    """An open `.nb` file. Raises FileFormatError (see errors.py for the causes) unless all of it is sound.

    meta_version, opt_version   from the header
    program                     Program
    tensors                     OrderedDict: name -> TensorInfo, in the order of the file
    largest_tensor              bytes, from the header of the parameters
    program_span                (start, end) of the program's FlatBuffer
    params_end                  where the last tensor's record ends; a bundle may follow
    size                        of the whole file
    """

    def __init__(self, path):
        self.path = os.fspath(path)
        self._map: Optional[mmap.mmap] = None
        try:
            mode = os.stat(self.path).st_mode
            if not stat.S_ISREG(mode):  # opening a pipe would wait for its writer
                kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
                raise NotAnNbFile(f"{self.path}: cannot be read: it is {kind}; expected a .nb file")
            with open(self.path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                if self.size == 0:
                    raise self._not_nb(b"")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or error
            raise NotAnNbFile(f"{self.path}: cannot be read: {problem}") from None
        try:
            self._read_header()
            self.program: Program = decode(self._map, *self.program_span, self.path)
            self._read_tensors()
            self._check_parameters()
        except FileFormatError:
            self.close()
            raise

    def _not_nb(self, head: bytes) -> NotAnNbFile:
        return NotAnNbFile(
            f"{self.path}: not a .nb file but {name_content(head, self.size)}. "
            "Expected a file that edge-kit export or paddle_lite_opt wrote."
        )

    def _truncated(self, what: str, expected: int, at: int) -> TruncatedNbFile:
        return TruncatedNbFile(
            f"{self.path}: truncated: {what} needs bytes {at} to {at + expected}, "
            f"the file ends at {self.size}. Copy or download it again."
        )

    def _read_header(self) -> None:
        head = bytes(self._map[: 4 * nb.OPT_VERSION_BYTES])
        meta_version = int.from_bytes(head[:2], "little")
        version_text = head[2 : 2 + nb.OPT_VERSION_BYTES].split(b"\0")[0]
        if meta_version != nb.META_VERSION:
            if len(head) >= nb.FILE_HEADER.size and version_text[:1] == b"v" and version_text[1:2].isdigit():
                raise UnsupportedNbFile(
                    f"{self.path}: a .nb file of meta version {meta_version}; this kit reads version "
                    f"{nb.META_VERSION}. Convert the model again with the opt of Paddle Lite 2.10 to 2.13."
                )
            raise self._not_nb(head)
        if len(head) < nb.FILE_HEADER.size:
            raise self._truncated("the header", nb.FILE_HEADER.size, 0)
        self.meta_version, _, program_bytes = nb.FILE_HEADER.unpack_from(head)
        self.opt_version = version_text.decode("ascii", "replace")
        start = nb.FILE_HEADER.size
        if program_bytes > self.size - start:
            raise self._truncated("the program", program_bytes, start)
        self.program_span = (start, start + program_bytes)

    def _read_tensors(self) -> None:
        position = self.program_span[1]
        if nb.PARAMS_HEADER.size > self.size - position:
            raise self._truncated("the parameters' header", nb.PARAMS_HEADER.size, position)
        version, meta_bytes, header_bytes, count, self.largest_tensor = nb.PARAMS_HEADER.unpack_from(
            self._map, position
        )
        if (version, meta_bytes, header_bytes) != (0, 0, nb.PARAMS_HEADER_BYTES):
            raise DamagedNbFile(
                f"{self.path}: damaged at byte {position}: the parameters' header is "
                f"{version}, {meta_bytes}, {header_bytes}; expected 0, 0, {nb.PARAMS_HEADER_BYTES}"
            )
        position += nb.PARAMS_HEADER.size
        self.tensors: OrderedDict[str, TensorInfo] = OrderedDict()
        for index in range(count):
            tensor, position = self._read_record(position, f"tensor {index + 1} of {count}")
            if tensor.name in self.tensors:
                raise DamagedNbFile(f"{self.path}: two tensors are named {tensor.name}")
            self.tensors[tensor.name] = tensor
        self.params_end = position

    def _read_record(self, position: int, what: str) -> tuple[TensorInfo, int]:
        """The tensor whose record starts at `position`, and where the next one starts."""
        if self.tensors:
            what += f" (after {next(reversed(self.tensors))})"
        if nb.RECORD_HEADER.size > self.size - position:
            raise self._truncated(what, nb.RECORD_HEADER.size, position)
        total, offset = nb.RECORD_HEADER.unpack_from(self._map, position)
        if not 4 <= offset <= total:
            raise DamagedNbFile(
                f"{self.path}: damaged at byte {position}: "
                f"{what} has an offset of {offset} in a record of {total} bytes"
            )
        end = position + 4 + total
        if end > self.size:
            raise self._truncated(self._name_in(position + 4 + offset) or what, 4 + total, position)
        return self._read_param(Buffer(self._map, position + 4 + offset, end, self.path), what), end

    def _name_in(self, start: int) -> str:
        """The name in a record that is cut short; empty if the cut took it too."""
        try:
            param = Buffer(self._map, start, self.size, self.path).root("a cut record")
            return "tensor " + param.text(nb.ParamDesc.NAME)[:64]
        except FileFormatError:
            return ""

    def _read_param(self, buffer: Buffer, what: str) -> TensorInfo:
        param = buffer.root(what)
        name = param.text(nb.ParamDesc.NAME)
        what = f"tensor {name[:64]}"
        kind = param.scalar(nb.ParamDesc.VARIABLE_TYPE, "B", 0)
        if kind != nb.ParamDesc.LOD_TENSOR:
            raise buffer.fail(param.position, what, f"kind {kind}; expected {nb.ParamDesc.LOD_TENSOR}")
        tensor = param.table(nb.ParamDesc.VARIABLE, what, required=True)
        dtype = element_name(tensor.scalar(nb.ParamTensor.DATA_TYPE, "i", 0), tensor)
        offset, nbytes = tensor.span(nb.ParamTensor.DATA, 1) or (buffer.end, 0)
        shape = tuple(tensor.scalars(nb.ParamTensor.DIM, "q"))
        expected = nb.ELEMENT_SIZES[dtype]
        for size in shape:
            expected *= size
        if len(shape) > MAX_DIMS or min(shape, default=0) < 0 or max(shape, default=0) > nb.MAX_RECORD_BYTES:
            raise buffer.fail(tensor.position, what, f"a shape of {list(shape[:MAX_DIMS])}")
        if expected != nbytes:
            raise buffer.fail(
                tensor.position, what, f"{dtype} {list(shape)} takes {expected} bytes, {nbytes} are there"
            )
        return TensorInfo(name, dtype, shape, offset, nbytes)

    def _check_parameters(self) -> None:
        for var in self.program.vars:
            if var.persistable and var.type == VarType.LOD_TENSOR and var.name not in self.tensors:
                raise MissingTensor(
                    f"{self.path}: the program uses the parameter {var.name}, which is not among the file's "
                    f"{len(self.tensors)} tensors. Export the model again."
                )

    @property
    def data(self) -> mmap.mmap:
        """The whole file, mapped."""
        return self._map

    def array(self, name: str) -> np.ndarray:
        """A read-only view of a tensor in the mapping: no bytes are copied."""
        tensor = self.tensors[name]
        if tensor.nbytes == 0:
            empty = np.empty(tensor.shape, tensor.dtype)
            empty.flags.writeable = False
            return empty
        count = tensor.nbytes // nb.ELEMENT_SIZES[tensor.dtype]
        return np.frombuffer(self._map, tensor.dtype, count, tensor.offset).reshape(tensor.shape)

    def close(self) -> None:
        """Unmaps the file; while arrays of it live, the mapping stays until the last one is gone."""
        mapped, self._map = self._map, None
        if mapped is not None:
            try:
                mapped.close()
            except BufferError:
                pass  # the arrays hold it

    def __enter__(self) -> NbFile:
        return self

    def __exit__(self, *error) -> None:
        self.close()
