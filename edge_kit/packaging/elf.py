"""What a 64-bit little-endian ELF shared library needs and offers, from its section headers.

Layouts: System V ABI, chapter "Object Files"; version needs: Linux Standard Base, "Symbol Versioning".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MACHINES = {62: "x86_64", 183: "aarch64"}

_SYMTAB, _DYNAMIC, _DYNSYM, _VERNEED = 2, 6, 11, 0x6FFFFFFE
_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_TEXTREL, _DT_RUNPATH = 1, 14, 15, 22, 29


@dataclass(frozen=True)
class ElfLibrary:
    """machine: a name of MACHINES, or the number. versions: (library, version) of needed symbols."""

    machine: str
    needed: tuple
    soname: str
    run_paths: tuple
    has_text_relocations: bool
    versions: frozenset
    exported: frozenset
    is_stripped: bool


def read_elf(data: bytes) -> ElfLibrary:
    """Raises ValueError if `data` is no such library."""
    try:
        return _read(data)
    except (struct.error, IndexError, KeyError) as error:
        raise ValueError(f"damaged ELF file: {error}") from None


def _read(data: bytes) -> ElfLibrary:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    (machine,) = struct.unpack_from("<H", data, 18)
    (table,) = struct.unpack_from("<Q", data, 40)
    entry_size, count = struct.unpack_from("<HH", data, 58)
    # name, type, flags, address, offset, size, link, info, alignment, entry size
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry_size) for i in range(count)]
    by_type = {section[1]: section for section in sections}

    def strings_of(section):
        return sections[section[6]][4]

    dynamic = by_type[_DYNAMIC]
    tags = list(struct.iter_unpack("<QQ", data[dynamic[4] : dynamic[4] + dynamic[5]]))

    def named(*wanted) -> tuple:
        return tuple(_text(data, strings_of(dynamic) + value) for tag, value in tags if tag in wanted)

    return ElfLibrary(
        machine=MACHINES.get(machine, str(machine)),
        needed=named(_DT_NEEDED),
        soname="".join(named(_DT_SONAME)),
        run_paths=named(_DT_RPATH, _DT_RUNPATH),
        has_text_relocations=any(tag == _DT_TEXTREL for tag, _ in tags),
        versions=frozenset(_versions(data, by_type.get(_VERNEED), strings_of)),
        exported=frozenset(_exported(data, by_type[_DYNSYM], strings_of)),
        is_stripped=_SYMTAB not in by_type,
    )


def _versions(data: bytes, section, strings_of):
    """(library, version) of each entry: records linked by offsets, each with a list of versions."""
    if section is None:
        return
    at = section[4]
    for _ in range(section[7]):
        _, count, library, first, following = struct.unpack_from("<HHIII", data, at)
        version_at = at + first
        for _ in range(count):
            _, _, _, name, next_version = struct.unpack_from("<IHHII", data, version_at)
            yield _text(data, strings_of(section) + library), _text(data, strings_of(section) + name)
            version_at += next_version
        at += following


def _exported(data: bytes, section, strings_of):
    """Names of the global and weak symbols that are defined here."""
    table = data[section[4] : section[4] + section[5]]
    for name, info, _, index, _, _ in struct.iter_unpack("<IBBHQQ", table):
        if index != 0 and info >> 4 in (1, 2):
            yield _text(data, strings_of(section) + name)


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("utf-8", "replace")
