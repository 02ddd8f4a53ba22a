"""The rules that a wheel keeps: its tags, its licences, and a library that runs wherever they say."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from pathlib import Path

from .elf import read_elf
from .macho import read_macho

MOST_LIBRARY_BYTES = 2_000_000  # with the text part
_ROOT = Path(__file__).resolve().parents[2]
_HEADER = _ROOT / "lite_runtime" / "include" / "edge_kit.h"

# Besides parts of glibc nothing may be needed, and of them no symbol that manylinux_2_17 lacks. libdl is for
# the unwinder, which looks up what newer systems offer it.
_LOADERS = ("ld-linux-aarch64.so.1", "ld-linux-x86-64.so.2")
_LINUX_LIBRARIES = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2") + _LOADERS
_NEWEST_GLIBC = (2, 17)
_MACOS_LIBRARIES = ("/usr/lib/libSystem.B.dylib",)
_OLDEST_MACOS = (11, 0)
# Marks of the image itself, which zig's linker exports from every dylib.
_LINKERS_OWN = {"___dso_handle", "__mh_dylib_header"}


def check_wheel(path: Path, target) -> list:
    """What is wrong with the wheel at `path`, made for `target`; [] if nothing is."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    libraries = [name for name in files if name.endswith((".so", ".dylib"))]
    problems = [*_check_tags(path.name, files, target), *_check_record(files), *_check_licences(files)]
    if len(libraries) != 1:
        return [*problems, f"holds {len(libraries)} native libraries ({', '.join(libraries)}), expected one"]
    name, data = libraries[0], files[libraries[0]]
    expected = "lite_runtime/libedge_kit" + (".dylib" if is_macos(target) else ".so")
    if name != expected:
        problems.append(f"its library is {name}, expected {expected}")
    return [*problems, *check_library(data, target)]


def is_macos(target) -> bool:
    """Whether the target's wheel is for macOS."""
    return target.wheel_tag.startswith("macosx")


def check_library(data: bytes, target) -> list:
    """What is wrong with a native library for `target`."""
    problems = []
    if len(data) > MOST_LIBRARY_BYTES:
        problems.append(f"the library has {len(data)} bytes, expected at most {MOST_LIBRARY_BYTES}")
    try:
        found = read_macho(data) if is_macos(target) else read_elf(data)
    except ValueError as error:
        return [*problems, str(error)]
    machine = target.zig_target.split("-")[0]
    if found.machine != machine:
        problems.append(f"the library is for {found.machine}, expected {machine}")
    if found.run_paths:
        problems.append(f"the library looks for others in {', '.join(found.run_paths)}")
    problems += _check_macho(found) if is_macos(target) else _check_elf(found)
    prefix = "_" if is_macos(target) else ""
    declared = {prefix + name for name in declared_functions()}
    strays = found.exported - declared - _LINKERS_OWN
    for names, what in ((strays, "exports"), (declared - found.exported, "lacks")):
        if names:
            problems.append(f"the library {what} {_some(names)}; its exports are the functions of edge_kit.h")
    return problems


def declared_functions() -> set:
    """Names of the functions in edge_kit.h."""
    text = re.sub(r"/\*.*?\*/", "", _HEADER.read_text(), flags=re.DOTALL)
    return set(re.findall(r"\bEK_API\b[^;(]*?\b(ek_\w+)\(", text))


def _check_elf(found) -> list:
    problems = []
    others = set(found.needed) - set(_LINUX_LIBRARIES)
    if others:
        problems.append(f"the library needs {_some(others)}, expected parts of glibc alone")
    young = {f"{version} of {library}" for library, version in found.versions if not _is_old(version)}
    if young:
        newest = ".".join(map(str, _NEWEST_GLIBC))
        problems.append(f"the library needs {_some(young)}, expected GLIBC_{newest} at most")
    if found.soname != "libedge_kit.so":
        problems.append(f"the library's soname is '{found.soname}', expected libedge_kit.so")
    if found.has_text_relocations:
        problems.append("the library is not relocatable: it has text relocations")
    if not found.is_stripped:
        problems.append("the library is not stripped")
    return problems


def _is_old(version: str) -> bool:
    match = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
    return match is not None and (int(match[1]), int(match[2])) <= _NEWEST_GLIBC


def _check_macho(found) -> list:
    problems = []
    others = set(found.libraries) - set(_MACOS_LIBRARIES)
    if others:
        problems.append(f"the library needs {_some(others)}, expected {', '.join(_MACOS_LIBRARIES)} alone")
    strays = {name for name, library in found.undefined.items() if library not in _MACOS_LIBRARIES}
    if strays:
        problems.append(f"the library expects {_some(strays)} from elsewhere")
    if not found.install_name.startswith("@rpath/"):
        problems.append(f"the library's install name is '{found.install_name}', expected one below @rpath")
    if found.oldest_macos is None or found.oldest_macos > _OLDEST_MACOS:
        problems.append(f"the library needs macOS {found.oldest_macos}, expected {_OLDEST_MACOS} at most")
    if not found.is_signed:
        problems.append("the library has no code signature, without which Apple silicon loads nothing")
    return problems


def _check_tags(name: str, files: dict, target) -> list:
    problems = []
    if not name.endswith(f"-py3-none-{target.wheel_tag}.whl"):
        problems.append(f"it is called {name}, expected an end of -py3-none-{target.wheel_tag}.whl")
    text = next((data.decode() for path, data in files.items() if path.endswith(".dist-info/WHEEL")), "")
    tags = set(re.findall(r"^Tag: (.*)$", text, re.MULTILINE))
    expected = {f"py3-none-{platform}" for platform in target.wheel_tag.split(".")}
    if tags != expected:
        problems.append(f"its tags are {_some(tags)}, expected {_some(expected)}")
    if "Root-Is-Purelib: false" not in text:
        problems.append("it claims to be pure Python")
    return problems


def _check_record(files: dict) -> list:
    """RECORD must list every file but itself, each with its sha256."""
    record = next((name for name in files if name.endswith(".dist-info/RECORD")), None)
    if record is None:
        return ["it has no RECORD"]
    listed = {row[0]: row[1] for row in csv.reader(io.StringIO(files[record].decode())) if row}
    wrong = set(files) ^ set(listed)
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if name != record and listed.get(name) != f"sha256={digest}":
            wrong.add(name)
    return [f"RECORD disagrees with the files about {_some(wrong)}"] if wrong else []


def _check_licences(files: dict) -> list:
    """The kit's licence, and that of LLVM's libc++, which the library holds a part of."""
    texts = [data for name, data in files.items() if ".dist-info/" in name]
    problems = []
    if (_ROOT / "LICENSE").read_bytes() not in texts:
        problems.append("it lacks the kit's LICENSE")
    if not any(b"LLVM Exceptions to the Apache 2.0 License" in text for text in texts):
        problems.append("it lacks the licence of LLVM's libc++, which is linked in")
    return problems


def _some(names, limit: int = 5) -> str:
    ordered = sorted(names)
    rest = f" and {len(ordered) - limit} more" if len(ordered) > limit else ""
    return ", ".join(ordered[:limit]) + rest
