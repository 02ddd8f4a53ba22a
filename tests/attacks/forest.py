"""FlatBuffers laid out by hand, for programs that no builder would write."""

from __future__ import annotations

import struct


class Layout:
    """Grows from the start, children behind their parents: forward offsets are filled in by `point`."""

    def __init__(self):
        self.data = bytearray(4)

    def _put(self, data: bytes) -> int:
        self.data += bytes(-len(self.data) % 4) + data
        return len(self.data) - len(data)

    def table(self, *slots: int) -> int:
        """A table with an offset for each given slot, in that order behind its first 4 bytes."""
        fields = [0] * (max(slots, default=-1) + 1)
        for i, slot in enumerate(slots):
            fields[slot] = 4 + 4 * i
        vtable = struct.pack(f"<HH{len(fields)}H", 4 + 2 * len(fields), 4 + 4 * len(slots), *fields)
        start = self._put(vtable)
        position = self._put(bytes(4 + 4 * len(slots)))
        struct.pack_into("<i", self.data, position, position - start)
        return position

    def vector(self, count: int) -> int:
        return self._put(struct.pack("<I", count) + bytes(4 * count))

    def text(self, value: bytes) -> int:
        return self._put(struct.pack("<I", len(value)) + value + b"\0")

    def point(self, at: int, to: int) -> None:
        struct.pack_into("<I", self.data, at, to - at)

    def point_all(self, vector: int, count: int, to: int) -> None:
        for i in range(count):
            self.point(vector + 4 + 4 * i, to)


def blocks(n: int) -> bytes:
    """A ProgramDesc with n blocks, all of them the same empty one."""
    out = Layout()
    root = out.table(0)
    out.point(0, root)
    vector = out.vector(n)
    out.point(root + 4, vector)
    out.point_all(vector, n, out.table())
    return bytes(out.data)


def shared_ops(n: int) -> bytes:
    """A ProgramDesc whose n ops are one op whose n attributes are one: n * n visits in 8 n bytes."""
    out = Layout()
    root = out.table(0)
    out.point(0, root)
    vector = out.vector(1)
    out.point(root + 4, vector)
    block = out.table(3)
    out.point_all(vector, 1, block)
    ops = out.vector(n)
    out.point(block + 4, ops)
    op = out.table(0, 3)
    out.point_all(ops, n, op)
    attrs = out.vector(n)
    out.point(op + 8, attrs)
    attr = out.table(0)
    out.point_all(attrs, n, attr)
    name = out.text(b"a")
    out.point(op + 4, name)
    out.point(attr + 4, name)
    return bytes(out.data)


def nb_file(program: bytes) -> bytes:
    """A `.nb` file with that program and no tensor."""
    header = struct.pack("<H16sQ", 2, b"v2.13-rc", len(program))
    return header + program + struct.pack("<HHHHI", 0, 0, 6, 0, 0)
