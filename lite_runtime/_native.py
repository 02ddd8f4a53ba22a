"""The C API of lite_runtime/include/edge_kit.h through ctypes.

ctypes releases the GIL during every call. Loading is lazy: importing `lite_runtime` needs no library.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import struct
import sys
from pathlib import Path

from .errors import (
    CancelledError,
    ContextFullError,
    EdgeKitError,
    FileFormatError,
    MemoryLimitError,
    MismatchError,
    UnsupportedError,
    UsageError,
)

ABI_VERSION = 2
MODES = {"int8": 0, "exact": 1}
KV_DTYPES = {None: 0, "f16": 1, "int8": 2}  # None: the mode's
LOGITS = {"none": 0, "last": 1, "all": 2}
STEP_KINDS = (
    "other",
    "embedding",
    "norm",
    "quantization",
    "linear",
    "rope",
    "cache",
    "attention",
    "activation",
    "add",
)

_STATUS_ERRORS = {
    1: UsageError,
    2: EdgeKitError,  # the file cannot be read, or not be written
    3: FileFormatError,
    4: UnsupportedError,
    5: MemoryLimitError,
    6: ContextFullError,
    7: CancelledError,
    8: EdgeKitError,  # internal
    9: MismatchError,
}


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("n_threads", ctypes.c_int32),
        ("n_ctx", ctypes.c_int64),
        ("mode", ctypes.c_int32),
        ("isa", ctypes.c_char_p),
        ("kv_dtype", ctypes.c_int32),
    ]


class ModelInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("n_threads", ctypes.c_int32),
        ("n_ctx", ctypes.c_int64),
        ("n_vocab", ctypes.c_int64),
        ("n_layers", ctypes.c_int64),
        ("hidden_size", ctypes.c_int64),
        ("n_heads", ctypes.c_int64),
        ("n_kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("parameter_bytes_per_token", ctypes.c_int64),
        ("kv_bytes_per_token", ctypes.c_int64),
        ("file_bytes", ctypes.c_int64),
        ("workspace_bytes", ctypes.c_int64),
        ("isa", ctypes.c_char_p),
        ("opt_version", ctypes.c_char_p),
    ]


class Segment(ctypes.Structure):
    _fields_ = [
        ("session", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("n_ids", ctypes.c_int64),
        ("logits", ctypes.c_int32),
    ]


class Sampling(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("temperature", ctypes.c_float),
        ("top_k", ctypes.c_int32),
        ("top_p", ctypes.c_float),
        ("min_p", ctypes.c_float),
        ("repetition_penalty", ctypes.c_float),
        ("seed", ctypes.c_uint64),
    ]


class ProfileEntry(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("kind", ctypes.c_int32),
        ("name", ctypes.c_char_p),
        ("calls", ctypes.c_int64),
        ("seconds", ctypes.c_double),
        ("bytes", ctypes.c_int64),
        ("operations", ctypes.c_int64),
    ]


_pointer = ctypes.c_void_p
_out_pointer = ctypes.POINTER(ctypes.c_void_p)

# Function -> (result, arguments). "status" results are turned into exceptions by `check`.
_SIGNATURES = {
    "ek_abi_version": (ctypes.c_uint32, []),
    "ek_version": (ctypes.c_char_p, []),
    "ek_last_error": (ctypes.c_char_p, []),
    "ek_model_open": ("status", [ctypes.c_char_p, ctypes.POINTER(Options), _out_pointer]),
    "ek_model_close": (None, [_pointer]),
    "ek_model_get_info": ("status", [_pointer, ctypes.POINTER(ModelInfo)]),
    "ek_session_create": ("status", [_pointer, _out_pointer]),
    "ek_session_free": (None, [_pointer]),
    "ek_session_length": (ctypes.c_int64, [_pointer]),
    "ek_session_cut": ("status", [_pointer, ctypes.c_int64]),
    "ek_session_fork": ("status", [_pointer, _out_pointer]),
    "ek_session_cancel": (None, [_pointer]),
    "ek_session_ids": (
        "status",
        [_pointer, _pointer, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)],
    ),
    "ek_session_save": ("status", [_pointer, ctypes.c_char_p]),
    "ek_session_restore": ("status", [_pointer, ctypes.c_char_p, _out_pointer]),
    "ek_forward": ("status", [_pointer, ctypes.POINTER(Segment), ctypes.c_size_t, _pointer, ctypes.c_size_t]),
    "ek_sample": (
        "status",
        [
            _pointer,
            ctypes.c_int64,
            ctypes.POINTER(Sampling),
            _pointer,
            ctypes.c_int64,
            ctypes.c_uint64,
            ctypes.POINTER(ctypes.c_int32),
        ],
    ),
    "ek_model_read_bandwidth": ("status", [_pointer, ctypes.POINTER(ctypes.c_double)]),
    "ek_read_bandwidth": (
        "status",
        [_pointer, ctypes.c_size_t, ctypes.c_int32, ctypes.POINTER(ctypes.c_double)],
    ),
    "ek_multiply_peak": ("status", [ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_double)]),
    "ek_model_profile_start": ("status", [_pointer]),
    "ek_model_profile_take": (
        "status",
        [_pointer, ctypes.POINTER(ProfileEntry), ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)],
    ),
    "ek_model_profile_stop": ("status", [_pointer]),
    "ek_isa_name": (ctypes.c_char_p, [ctypes.c_int32]),
}


def library_path() -> Path:
    """EDGE_KIT_LIBRARY, else the library beside this file."""
    name = "libedge_kit.dylib" if sys.platform == "darwin" else "libedge_kit.so"
    return Path(os.environ.get("EDGE_KIT_LIBRARY") or Path(__file__).with_name(name))


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded library. Raises UnsupportedError if it is missing, or not for this machine or package."""
    path = library_path()
    rebuild = "build it with 'python -m lite_runtime.build' (C++17 compiler or 'pip install ziglang')"
    if not path.is_file():
        raise UnsupportedError(f"the native library {path} is missing: {rebuild}")
    arch, here = binary_arch(path), _this_arch()
    if arch not in (None, here):
        raise UnsupportedError(
            f"the native library {path} is built for {arch}, this Python runs on {here}: {rebuild}"
        )
    try:
        loaded = ctypes.CDLL(str(path))
        version = loaded.ek_abi_version()
    except (OSError, AttributeError) as error:
        raise UnsupportedError(f"the native library {path} cannot be loaded ({error}): {rebuild}") from None
    if version != ABI_VERSION:
        raise UnsupportedError(
            f"the native library {path} has ABI version {version}, expected {ABI_VERSION}: {rebuild}"
        )
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes = arguments
        function.restype = ctypes.c_int if result == "status" else result
    return loaded


def check(status: int) -> None:
    """Raises the typed error for a status, with the calling thread's native message."""
    if status != 0:
        message = library().ek_last_error().decode("utf-8", "replace")
        raise _STATUS_ERRORS.get(status, EdgeKitError)(message or f"native call failed with status {status}")


def session_ids(session) -> ctypes.Array:
    """The token ids in a session's cache, int32."""
    count = ctypes.c_size_t(library().ek_session_length(session))
    ids = (ctypes.c_int32 * count.value)()
    check(library().ek_session_ids(session, ids, count, ctypes.byref(count)))
    return ids


def available_isas() -> list:
    """Names of the kernel paths that this CPU can run, best first."""
    names = []
    while True:
        name = library().ek_isa_name(len(names))
        if not name:
            return names
        names.append(name.decode())


def _this_arch() -> str:
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def binary_arch(path) -> str | None:
    """The processor that an ELF or Mach-O file is for; None if the file does not tell.

    ELF: e_machine, u16 at byte 18. Mach-O (64-bit): cputype, u32 at byte 4.
    """
    with open(path, "rb") as file:
        head = file.read(20)
    if head[:4] == b"\x7fELF" and len(head) == 20:
        machine = struct.unpack_from("<H" if head[5] == 1 else ">H", head, 18)[0]
        return {62: "x86_64", 183: "aarch64", 3: "i686", 40: "armv7l", 243: "riscv64"}.get(
            machine, f"ELF {machine}"
        )
    if head[:4] == b"\xcf\xfa\xed\xfe":
        cpu = struct.unpack_from("<I", head, 4)[0]
        return {0x01000007: "x86_64", 0x0100000C: "aarch64"}.get(cpu, f"Mach-O {cpu:#x}")
    return None
