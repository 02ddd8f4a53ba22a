"""The calls of the C API that the Python package has no use for, since it has its own text side."""

from __future__ import annotations

import ctypes
import functools

from lite_runtime import _native

BOS, SPECIAL = 1, 2  # ek_text_flags

Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)


class Message(ctypes.Structure):
    """ek_message."""

    _fields_ = [("role", ctypes.c_char_p), ("content", ctypes.c_char_p)]


class Options(ctypes.Structure):
    """ek_generate_options."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("max_new_tokens", ctypes.c_int64),
        ("sampling", ctypes.POINTER(_native.Sampling)),
        ("stops", ctypes.POINTER(ctypes.c_char_p)),
        ("n_stops", ctypes.c_size_t),
    ]


class Result(ctypes.Structure):
    """ek_generation."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("finish_reason", ctypes.c_int32),
        ("last_token", ctypes.c_int32),
        ("n_prompt", ctypes.c_int64),
        ("n_cached", ctypes.c_int64),
        ("n_generated", ctypes.c_int64),
        ("prefill_seconds", ctypes.c_double),
        ("decode_seconds", ctypes.c_double),
    ]


_handle, _int, _size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_size_t
_out_handle, _out_size = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t)
_answer = [ctypes.POINTER(Options), Callback, ctypes.c_void_p, ctypes.POINTER(Result)]
_ARGUMENTS = {
    "ek_text_encode": [_handle, ctypes.c_char_p, _size, ctypes.c_uint32, ctypes.c_void_p, _size, _out_size],
    "ek_text_decode": [_handle, ctypes.c_void_p, _size, _int, ctypes.c_void_p, _size, _out_size],
    "ek_chat_render": [_handle, ctypes.POINTER(Message), _size, _int, ctypes.c_void_p, _size, _out_size],
    "ek_text_stream_create": [_handle, _out_handle],
    "ek_text_stream_free": [_handle],
    "ek_text_stream_add": [_handle, _int, ctypes.POINTER(ctypes.c_char_p), _out_size],
    "ek_generate": [_handle, ctypes.c_char_p, _size, *_answer],
    "ek_chat": [_handle, ctypes.POINTER(Message), _size, *_answer],
}


@functools.cache
def library() -> ctypes.CDLL:
    """The package's library, with these calls declared; all give a status but for ek_text_stream_free."""
    loaded = _native.library()
    for name, arguments in _ARGUMENTS.items():
        function = getattr(loaded, name)
        function.argtypes = arguments
        function.restype = None if name.endswith("_free") else ctypes.c_int
    return loaded
