"""ek_generate and ek_chat of the C API, called as a program without Python would call them."""

from __future__ import annotations

import ctypes

from lite_runtime import _native

FINISH_REASONS = ("stop", "length", "cancelled", "callback")

Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)


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
        ("n_prompt", ctypes.c_int64),
        ("n_cached", ctypes.c_int64),
        ("n_generated", ctypes.c_int64),
        ("prefill_seconds", ctypes.c_double),
        ("decode_seconds", ctypes.c_double),
    ]


class NativeModel:
    """One `.nb` file and one session of it. Close it, or use it as a context manager."""

    def __init__(self, path, n_ctx: int = 0):
        self.library = _native.library()
        self.model, self.session = ctypes.c_void_p(), ctypes.c_void_p()
        options = _native.Options(struct_size=ctypes.sizeof(_native.Options), n_ctx=n_ctx)
        _native.check(
            self.library.ek_model_open(str(path).encode(), ctypes.byref(options), ctypes.byref(self.model))
        )
        _native.check(self.library.ek_session_create(self.model, ctypes.byref(self.session)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.library.ek_session_free(self.session)
        self.library.ek_model_close(self.model)

    def __len__(self) -> int:
        return self.library.ek_session_length(self.session)

    def generate(self, prompt: str, on_text=None, **options):
        """(text, finish reason, Result). on_text(piece) -> whether to go on."""
        data = prompt.encode("utf-8")
        return self._answer(self.library.ek_generate, [data, len(data)], on_text, **options)

    def chat(self, messages, on_text=None, **options):
        """The same for messages, dicts with "role" and "content"."""
        pairs = [(message["role"].encode(), message["content"].encode()) for message in messages]
        array = (_native.Message * len(pairs))(*pairs)
        return self._answer(self.library.ek_chat, [array, len(messages)], on_text, **options)

    def _answer(self, function, prompt, on_text, max_new_tokens=0, sampling=None, stops=()):
        pieces = []

        def show(_user, text, size):
            assert len(text) == size > 0  # the NUL stands where the size says
            pieces.append(text.decode("utf-8"))  # whole characters
            return int(on_text is None or on_text(pieces[-1]))

        options = Options(
            struct_size=ctypes.sizeof(Options),
            max_new_tokens=max_new_tokens,
            sampling=ctypes.pointer(sampling) if sampling is not None else None,
            stops=(ctypes.c_char_p * len(stops))(*(stop.encode() for stop in stops)) if stops else None,
            n_stops=len(stops),
        )
        result = Result(struct_size=ctypes.sizeof(Result))
        function.argtypes = None
        function.restype = ctypes.c_int
        status = function(
            self.session,
            prompt[0],
            ctypes.c_size_t(prompt[1]),
            ctypes.byref(options),
            Callback(show),
            None,
            ctypes.byref(result),
        )
        _native.check(status)
        return "".join(pieces), FINISH_REASONS[result.finish_reason], result
