"""A session: one sequence of tokens and its KV cache.

Threads: calls on one session run one after the other; `cancel` and `close` may come from any thread at any
time. A call after `close` raises UsageError.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import os
import threading

import numpy as np

from . import _native
from .errors import UsageError, file_path, whole_number
from .generate import generate

BLOCK = 64  # tokens of a block of the cache (kCacheBlock of the native core)


def common_prefix(a, b) -> int:
    """How many token ids `a` and `b` begin with alike."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.asarray(a[:n], np.int32) != np.asarray(b[:n], np.int32))
    return int(differ[0]) if differ.size else n


class SessionHandle:
    """The native session behind a Session. The model knows it too and closes what is left open.

    It knows neither of them, so that garbage collection may end them in any order.
    """

    def __init__(self, pointer: int):
        self._pointer = pointer
        self._in_use = threading.RLock()  # held during every native call but cancel
        self._valid = threading.RLock()  # held while the pointer is used by cancel or freed
        self.n_cancels = 0
        self.cancel_came_late = False  # for the generation it was meant for; the native flag is still up
        self._n_aside = 0  # tokens of the cache behind those that the session shows

    @contextlib.contextmanager
    def use(self):
        """Waits for the running call to end and gives the pointer. What was set aside is dropped."""
        with self._in_use:
            if self._pointer is None:
                raise UsageError("the session is closed")
            if self._n_aside:
                library, n_aside, self._n_aside = _native.library(), self._n_aside, 0
                shown = library.ek_session_length(self._pointer) - n_aside
                _native.check(library.ek_session_cut(self._pointer, shown))
            yield self._pointer

    def set_aside(self, n: int) -> None:
        """The last `n` tokens of the cache are guesses, to be taken one by one or dropped."""
        self._n_aside = n

    def take(self, show) -> bool:
        """Makes the first token set aside a part of the session and calls `show`; False if none is there any
        more."""
        with self._in_use:
            if not self._n_aside:
                return False
            self._n_aside -= 1
            show()
            return True

    def cancel(self) -> None:
        with self._valid:
            if self._pointer is not None:
                self.n_cancels += 1
                _native.library().ek_session_cancel(self._pointer)

    def close(self) -> None:
        self.cancel()
        with self._in_use, self._valid:
            if self._pointer is not None:
                _native.library().ek_session_free(self._pointer)
                self._pointer = None


class Session:
    """Made by `model.session()`, or `model.restore(path)`; also a context manager."""

    def __init__(self, model, pointer: int, tokens=()):
        self.model = model
        self._tokens = array.array("i", tokens)  # int32: the history that sampling reads
        self._shared = []  # one object per full block of the cache that forks may share, equal in all of them
        self._handle = SessionHandle(pointer)
        model._handles.add(self._handle)

    def __len__(self) -> int:
        """Tokens in the cache."""
        return len(self._tokens)

    def __bool__(self) -> bool:
        return True  # an empty session is a session

    @property
    def tokens(self) -> list:
        """The ids in the cache, in order."""
        return self._tokens.tolist()

    def forward(self, ids) -> np.ndarray:
        """Appends `ids` [T]; returns their logits, float32 [T, V]. `model.forward` takes several sessions."""
        return self.model.forward([(self, ids, "all")])[0]

    def cut(self, n: int) -> None:
        """Keeps the first `n` tokens of the cache."""
        with self._handle.use() as pointer:
            n = whole_number("cut: n", n, 0, len(self))
            _native.check(_native.library().ek_session_cut(pointer, n))
            del self._tokens[n:]
            del self._shared[n // BLOCK :]

    def _set_aside(self, n: int) -> None:
        """Hides the last `n` tokens; the next call that uses the cache drops them, unless they are taken."""
        if n:
            self._handle.set_aside(n)
            del self._tokens[-n:]

    def _take(self, token: int) -> bool:
        """Shows `token`, the first of those set aside; False if they were dropped."""
        return self._handle.take(lambda: self._tokens.append(token))

    def reuse(self, ids) -> int:
        """Cuts the cache to what it has in common with the prompt `ids`, and gives how many tokens that is.

        At least the prompt's last token is left to be an input, since logits come from one.
        """
        common = common_prefix(self._tokens, ids[:-1])
        self.cut(common)
        return common

    def fork(self) -> Session:
        """A second session with the same cache content; full blocks are shared."""
        fork = ctypes.c_void_p()
        with self.model._use(), self._handle.use() as pointer:
            _native.check(_native.library().ek_session_fork(pointer, ctypes.byref(fork)))
            self._shared += [object() for _ in range(len(self) // BLOCK - len(self._shared))]
            second = Session(self.model, fork.value, self._tokens)
            second._shared = list(self._shared)
            return second

    def save(self, path) -> None:
        """Writes the tokens and the cache to a file, for `model.restore`.

        It appears whole or not at all, and an older one stays until then. Raises EdgeKitError, with the
        system's reason, if it cannot be written.
        """
        path = file_path(path)
        with self.model._use(), self._handle.use() as pointer:
            _native.check(_native.library().ek_session_save(pointer, os.fsencode(path)))

    def cancel(self) -> None:
        """Makes the running forward or generate, or the next one, end. Any thread."""
        self._handle.cancel()

    def generate(self, prompt, **options):
        """Appends `prompt` and yields Items, one per new token; see `lite_runtime.generate.generate`."""
        return generate(self, prompt, **options)

    def close(self) -> None:
        """Cancels and awaits a running call, then frees the cache. May be called twice."""
        self._handle.close()
        self.model._handles.discard(self._handle)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_exception) -> None:
        self.close()

    def __del__(self):
        if hasattr(self, "_handle"):
            self.close()
