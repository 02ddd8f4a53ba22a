"""FlatBuffers tables read with `struct` alone, every offset checked.

Positions are absolute in the data given, so that a message can name the place in the file. The time a hostile
buffer can cost is bounded: each object visited is charged against a budget of BUDGET times the buffer's size,
so objects that share bytes again and again end in an error instead of a hang.
"""

from __future__ import annotations

import struct

from edge_kit.nb.errors import DamagedNbFile

BUDGET = 8  # sound buffers need 1; some writers share equal strings

_U16 = struct.Struct("<H")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")


class Buffer:
    """The window [start, end) of `data` that holds one FlatBuffer; `label` is the file's name in messages."""

    def __init__(self, data, start: int, end: int, label: str):
        self.data = data
        self.start = start
        self.end = end
        self.label = label
        self._budget = BUDGET * (end - start) + 64

    def fail(self, position: int, what: str, problem: str) -> DamagedNbFile:
        return DamagedNbFile(
            f"{self.label}: damaged at byte {position} while reading {what}: {problem}. "
            "Copy or export the file again."
        )

    def check(self, position: int, size: int, what: str) -> None:
        if position < self.start or size > self.end - position:
            raise self.fail(
                position, what, f"{size} bytes there are outside the table's bytes {self.start} to {self.end}"
            )

    def charge(self, size: int, position: int, what: str) -> None:
        self._budget -= size
        if self._budget < 0:
            raise self.fail(position, what, "its parts overlap so often that it cannot be sound")

    def u32(self, position: int, what: str) -> int:
        self.check(position, 4, what)
        return _U32.unpack_from(self.data, position)[0]

    def target(self, position: int, what: str) -> int:
        """Where the forward offset stored at `position` leads."""
        return position + self.u32(position, what)

    def vector(self, position: int, element_bytes: int, what: str) -> tuple:
        """(position of the first element, count) of the vector at `position`."""
        count = self.u32(position, what)
        self.check(position + 4, count * element_bytes, what)
        self.charge(4 + count * element_bytes, position, what)
        return position + 4, count

    def text(self, position: int, what: str) -> str:
        first, count = self.vector(position, 1, what)
        try:
            return bytes(self.data[first : first + count]).decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(first, what, "its text is not UTF-8") from None

    def root(self, what: str) -> Table:
        return Table(self, self.target(self.start, what), what)


class Table:
    """One table. Getters take a slot; an absent field gives the default, None or an empty list."""

    __slots__ = ("buffer", "position", "what", "_vtable", "_slots", "_size")

    def __init__(self, buffer: Buffer, position: int, what: str):
        buffer.check(position, 4, what)
        vtable = position - _I32.unpack_from(buffer.data, position)[0]
        buffer.check(vtable, 4, what)
        vtable_bytes = _U16.unpack_from(buffer.data, vtable)[0]
        size = _U16.unpack_from(buffer.data, vtable + 2)[0]
        if vtable_bytes < 4 or vtable_bytes % 2 or size < 4:
            raise buffer.fail(vtable, what, f"a vtable of {vtable_bytes} bytes for a table of {size}")
        buffer.check(vtable, vtable_bytes, what)
        buffer.check(position, size, what)
        buffer.charge(size, position, what)
        self.buffer = buffer
        self.position = position
        self.what = what
        self._vtable = vtable
        self._slots = (vtable_bytes - 4) // 2
        self._size = size

    def _field(self, slot: int, size: int) -> int:
        """Position of a field of `size` bytes, 0 if absent."""
        if slot >= self._slots:
            return 0
        offset = _U16.unpack_from(self.buffer.data, self._vtable + 4 + 2 * slot)[0]
        if offset == 0:
            return 0
        if offset < 4 or offset + size > self._size:
            raise self.buffer.fail(
                self.position, self.what, f"field {slot} lies at {offset} in a table of {self._size} bytes"
            )
        return self.position + offset

    def _target(self, slot: int) -> int:
        field = self._field(slot, 4)
        return self.buffer.target(field, self.what) if field else 0

    def _missing(self, slot: int) -> DamagedNbFile:
        return self.buffer.fail(self.position, self.what, f"required field {slot} is absent")

    def scalar(self, slot: int, code: str, default):
        """`code` is a struct format character: i, q, f, B."""
        field = self._field(slot, struct.calcsize("<" + code))
        return struct.unpack_from("<" + code, self.buffer.data, field)[0] if field else default

    def text(self, slot: int, default=None):
        """The string; without a default the field is required."""
        target = self._target(slot)
        if target:
            return self.buffer.text(target, self.what)
        if default is None:
            raise self._missing(slot)
        return default

    def table(self, slot: int, what: str, required: bool = False):
        target = self._target(slot)
        if target:
            return Table(self.buffer, target, what)
        if required:
            raise self._missing(slot)
        return None

    def span(self, slot: int, element_bytes: int):
        """(position of the first element, count) of a vector, None if absent."""
        target = self._target(slot)
        return self.buffer.vector(target, element_bytes, self.what) if target else None

    def scalars(self, slot: int, code: str) -> list:
        span = self.span(slot, struct.calcsize("<" + code))
        return list(struct.unpack_from(f"<{span[1]}{code}", self.buffer.data, span[0])) if span else []

    def texts(self, slot: int) -> list:
        first, count = self.span(slot, 4) or (0, 0)
        buffer = self.buffer
        return [buffer.text(buffer.target(first + 4 * i, self.what), self.what) for i in range(count)]

    def tables(self, slot: int, what: str):
        """The tables of a vector, one after the other."""
        first, count = self.span(slot, 4) or (0, 0)
        for i in range(count):
            yield Table(self.buffer, self.buffer.target(first + 4 * i, self.what), f"{what} {i}")
