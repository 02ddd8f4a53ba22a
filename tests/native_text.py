"""The text calls of the C API, as a program without Python's tokenizers would use them."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import shutil

import native_api

from edge_kit.nb.bundle import write_bundle
from lite_runtime import _native


class NativeText:
    """The tokenizer of one `.nb` file in the native core. Use it as a context manager."""

    def __init__(self, path):
        self.path = path
        self._library = native_api.library()
        self._model = ctypes.c_void_p()
        _native.check(self._library.ek_model_open(str(path).encode(), None, ctypes.byref(self._model)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._library.ek_model_close(self._model)

    def encode(self, text, bos: bool = False, special: bool = True) -> list:
        """Token ids of a text, or of bytes that may be no UTF-8."""
        data = text.encode("utf-8") if isinstance(text, str) else text
        flags = native_api.BOS * bos + native_api.SPECIAL * special
        room = 3 * len(data) + 1
        ids, count = (ctypes.c_int32 * room)(), ctypes.c_size_t()
        _native.check(
            self._library.ek_text_encode(
                self._model, data, len(data), flags, ids, room, ctypes.byref(count)
            )
        )
        assert count.value <= room
        return ids[: count.value]

    def decode(self, ids, skip_special: bool = True) -> str:
        """Text of token ids."""
        array, count = (ctypes.c_int32 * len(ids))(*ids), ctypes.c_size_t()
        arguments = [self._model, array, len(ids), int(skip_special)]
        _native.check(self._library.ek_text_decode(*arguments, None, 0, ctypes.byref(count)))
        text = ctypes.create_string_buffer(count.value)
        _native.check(self._library.ek_text_decode(*arguments, text, count.value, ctypes.byref(count)))
        return text.raw.decode("utf-8")

    def render(self, messages, add_generation_prompt: bool = True) -> str:
        """The text of messages, dicts with "role" and "content" (str, or bytes that may be no UTF-8)."""
        array, count = (native_api.Message * len(messages))(), ctypes.c_size_t()
        for entry, message in zip(array, messages):
            content = message["content"]
            entry.role = message["role"].encode("utf-8")
            entry.content = content.encode("utf-8") if isinstance(content, str) else content
        arguments = [self._model, array, len(messages), int(add_generation_prompt)]
        _native.check(self._library.ek_chat_render(*arguments, None, 0, ctypes.byref(count)))
        text = ctypes.create_string_buffer(count.value)
        _native.check(self._library.ek_chat_render(*arguments, text, count.value, ctypes.byref(count)))
        return text.raw.decode("utf-8")

    def stream(self, ids) -> list:
        """The text that became certain with each token."""
        stream, text, size = ctypes.c_void_p(), ctypes.c_char_p(), ctypes.c_size_t()
        _native.check(self._library.ek_text_stream_create(self._model, ctypes.byref(stream)))
        pieces = []
        for token in ids:
            _native.check(
                self._library.ek_text_stream_add(stream, token, ctypes.byref(text), ctypes.byref(size))
            )
            pieces.append(ctypes.string_at(text, size.value).decode("utf-8"))
        self._library.ek_text_stream_free(stream)
        return pieces


@contextlib.contextmanager
def texts_over(nb, folder):
    """Gives a function, {name: bytes} -> NativeText of a copy of `nb` with these files behind its tensors."""
    with contextlib.ExitStack() as opened:
        paths = (folder / f"{i}.nb" for i in itertools.count())

        def open_with(files: dict) -> NativeText:
            path = next(paths)
            shutil.copy(nb, path)
            write_bundle(path, files)
            return opened.enter_context(NativeText(path))

        yield open_with
