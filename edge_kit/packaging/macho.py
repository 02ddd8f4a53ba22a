"""What a 64-bit Mach-O dynamic library needs and offers, from its load commands.

Layouts: mach-o/loader.h and mach-o/nlist.h of macOS.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

CPUS = {0x01000007: "x86_64", 0x0100000C: "aarch64"}

_MAGIC, _DYLIB, _MACOS = 0xFEEDFACF, 6, 1
_SYMTAB, _LOAD_DYLIB, _ID_DYLIB, _CODE_SIGNATURE, _BUILD_VERSION = 0x2, 0xC, 0xD, 0x1D, 0x32
_LOAD_WEAK_DYLIB, _RPATH, _REEXPORT_DYLIB = 0x80000018, 0x8000001C, 0x8000001F
_DYLD_INFO, _DYLD_EXPORTS_TRIE = 0x80000022, 0x80000033
_STAB, _TYPE, _EXTERNAL = 0xE0, 0x0E, 0x01


@dataclass(frozen=True)
class MachOLibrary:
    """machine: a name of CPUS, or the number. oldest_macos: (major, minor), None if it is not for macOS.

    undefined: symbol -> the library it is looked up in, "" if in any.
    """

    machine: str
    install_name: str
    libraries: tuple
    run_paths: tuple
    oldest_macos: tuple | None
    is_signed: bool
    exported: frozenset
    undefined: dict


def read_macho(data: bytes) -> MachOLibrary:
    """Raises ValueError if `data` is no such library."""
    try:
        return _read(data)
    except (struct.error, IndexError) as error:
        raise ValueError(f"damaged Mach-O file: {error}") from None


def _read(data: bytes) -> MachOLibrary:
    magic, cpu, _, kind, count = struct.unpack_from("<5I", data, 0)
    if magic != _MAGIC or kind != _DYLIB:
        raise ValueError("no 64-bit Mach-O dynamic library")
    libraries, install_name, run_paths, oldest, signed = [], "", [], None, False
    symbols, exports = (0, 0, 0), (0, 0)
    at = 32
    for _ in range(count):
        command, size = struct.unpack_from("<II", data, at)
        if command in (_LOAD_DYLIB, _LOAD_WEAK_DYLIB, _REEXPORT_DYLIB):
            libraries.append(_named(data, at))
        elif command == _ID_DYLIB:
            install_name = _named(data, at)
        elif command == _RPATH:
            run_paths.append(_named(data, at))
        elif command == _BUILD_VERSION:
            platform, version = struct.unpack_from("<II", data, at + 8)
            oldest = (version >> 16, version >> 8 & 0xFF) if platform == _MACOS else None
        elif command == _CODE_SIGNATURE:
            signed = True
        elif command == _SYMTAB:
            symbols = struct.unpack_from("<III", data, at + 8)
        elif command == _DYLD_INFO:
            exports = struct.unpack_from("<II", data, at + 40)
        elif command == _DYLD_EXPORTS_TRIE:
            exports = struct.unpack_from("<II", data, at + 8)
        at += size
    return MachOLibrary(
        CPUS.get(cpu, hex(cpu)),
        install_name,
        tuple(libraries),
        tuple(run_paths),
        oldest,
        signed,
        frozenset(_exported(data[exports[0] : sum(exports)])),
        _undefined(data, *symbols, libraries),
    )


def _named(data: bytes, at: int) -> str:
    """The string of a command, whose offset follows its head."""
    return _text(data, at + struct.unpack_from("<I", data, at + 8)[0])


def _exported(trie: bytes):
    """Names in an export trie. A node: the size of its own entry, the entry, the number of its edges, and for
    each of these its letters, a zero, and where the next node begins."""
    nodes = [(0, b"")] if trie else []
    for at, name in nodes:  # grows while it is walked
        if len(nodes) > len(trie):
            raise ValueError("damaged Mach-O file: its export trie has a loop")
        size, at = _uleb128(trie, at)
        if size:
            yield name.decode("utf-8", "replace")
        at += size
        edges, at = trie[at], at + 1
        for _ in range(edges):
            end = trie.index(b"\0", at)
            node, following = _uleb128(trie, end + 1)
            nodes.append((node, name + trie[at:end]))
            at = following


def _uleb128(data: bytes, at: int) -> tuple:
    """(number, where it ends): 7 bits per byte, the lowest first, the top bit set in all but the last."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return value, at


def _undefined(data: bytes, table: int, count: int, strings: int, libraries: list) -> dict:
    """Name -> library of the symbols to be looked up; the upper byte of n_desc counts libraries from 1."""
    found = {}
    entries = struct.iter_unpack("<IBBHQ", data[table : table + 16 * count])
    for name, kind, _, description, _ in entries:
        if not kind & (_STAB | _TYPE) and kind & _EXTERNAL:
            ordinal = description >> 8
            library = libraries[ordinal - 1] if 1 <= ordinal <= len(libraries) else ""
            found[_text(data, strings + name)] = library
    return found


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("utf-8", "replace")
