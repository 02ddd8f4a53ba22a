"""Copies of a `.nb` file: aligned, or with arm kernel picks replaced by x86's."""

from __future__ import annotations

import os
import shutil
from typing import Callable, Optional

from edge_kit.nb import format as nb
from edge_kit.nb.flat import Buffer
from edge_kit.nb.kernels import to_x86
from edge_kit.nb.reader import NbFile
from edge_kit.nb.writer import NbWriter
from lite_runtime.errors import FileFormatError, UsageError

_COPY_BYTES = 1 << 22


def align(src, dst, bundle: Optional[Callable[[str], dict]] = None) -> None:
    """Rewrites a file of opt so that every tensor's data starts at a multiple of 64 bytes.

    The program's bytes and the order of the tensors stay. Streams: no tensor is held in memory. `bundle` as
    for NbWriter; a bundle in `src` is not copied.
    """
    with NbFile(src) as model, open(src, "rb") as file:
        start, end = model.program_span
        file.seek(start)
        program = file.read(end - start)
        with NbWriter(dst, program, model.opt_version, bundle) as writer:
            for tensor in model.tensors.values():
                writer.add(tensor.name, tensor.dtype, tensor.shape, _read(file, tensor.offset, tensor.nbytes))


def _read(file, offset: int, nbytes: int):
    """The bytes from `offset` on, in chunks; read, not mapped, so that they don't count as resident."""
    file.seek(offset)
    while nbytes:
        chunk = file.read(min(nbytes, _COPY_BYTES))
        if not chunk:
            raise FileFormatError(f"{file.name}: the file became shorter while it was read")
        nbytes -= len(chunk)
        yield chunk


def kernel_picks(model: NbFile) -> list[tuple[int, str]]:
    """(position in the file, pick) of each op that has one, in program order."""
    start, end = model.program_span
    buffer = Buffer(model.data, start, end, model.path)
    picks = []
    for block in buffer.root("the program").tables(nb.ProgramDesc.BLOCKS, "block"):
        for op in block.tables(nb.BlockDesc.OPS, "op"):
            for attr in op.tables(nb.OpDesc.ATTRS, f"{op.what} attribute"):
                text = attr.span(nb.OpAttr.S, 1)
                if attr.text(nb.OpAttr.NAME) == nb.KERNEL_ATTRIBUTE and text:
                    picks.append((text[0], attr.text(nb.OpAttr.S)))
    return picks


def retarget(src, dst, target: str = "x86") -> int:
    """Copies an arm file with its kernel picks replaced by x86's, so that the stock runtime of a PC can judge
    it; returns how many were replaced.

    Nothing else changes, byte for byte: the picks have the same length. Use the copy for the judge alone; the
    digest in a manifest is that of the original.
    """
    if target != "x86":
        raise UsageError(f"retarget: no way to target {target!r}; only x86 has a stock runtime to judge with")
    with NbFile(src) as model:
        picks = [(position, old, to_x86(old)) for position, old in kernel_picks(model)]
    partial = os.fspath(dst) + ".partial"
    changed = 0
    try:
        shutil.copyfile(src, partial)
        with open(partial, "r+b") as file:
            for position, old, new in picks:
                if old != new:
                    file.seek(position)
                    file.write(new.encode("ascii"))
                    changed += 1
        os.replace(partial, dst)
    except BaseException:
        if os.path.exists(partial):
            os.remove(partial)
        raise
    return changed
