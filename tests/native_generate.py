"""ek_generate and ek_chat of the C API, called as a program without Python would call them."""

from __future__ import annotations

import ctypes

import native_api

from lite_runtime import _native

FINISH_REASONS = ("stop", "length", "cancelled", "callback")


class NativeModel:
    """One `.nb` file and one session of it. Use it as a context manager."""

    def __init__(self, path, n_ctx: int = 0):
        self.library = native_api.library()
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
        array = (native_api.Message * len(pairs))(*pairs)
        return self._answer(self.library.ek_chat, [array, len(messages)], on_text, **options)

    def _answer(self, function, prompt, on_text, max_new_tokens=0, sampling=None, stops=()):
        pieces = []

        def show(_user, text, size):
            assert len(text) == size > 0  # the NUL stands where the size says
            pieces.append(text.decode("utf-8"))  # whole characters
            return int(on_text is None or on_text(pieces[-1]))

        options = native_api.Options(
            struct_size=ctypes.sizeof(native_api.Options),
            max_new_tokens=max_new_tokens,
            sampling=ctypes.pointer(sampling) if sampling is not None else None,
            stops=(ctypes.c_char_p * len(stops))(*(stop.encode() for stop in stops)) if stops else None,
            n_stops=len(stops),
        )
        result = native_api.Result(struct_size=ctypes.sizeof(native_api.Result))
        callback = native_api.Callback(show)
        _native.check(
            function(self.session, *prompt, ctypes.byref(options), callback, None, ctypes.byref(result))
        )
        return "".join(pieces), FINISH_REASONS[result.finish_reason], result
