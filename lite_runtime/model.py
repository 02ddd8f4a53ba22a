"""A loaded model: the mapped `.nb` file and its forward pass."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from dataclasses import dataclass, fields

import numpy as np

from . import _native, machine
from .bundle import Bundle
from .errors import FileFormatError, UsageError, file_path, whole_number
from .session import Session
from .text import Text

KV_DTYPES = ("f16", "int8")  # of the cache in int8 mode, default first


@dataclass(frozen=True)
class ModelInfo:
    """What the native core says about a loaded model."""

    n_threads: int
    n_ctx: int
    n_vocab: int
    n_layers: int
    hidden_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    parameter_bytes_per_token: int  # bytes of weights read to decode one token
    kv_bytes_per_token: int
    file_bytes: int
    workspace_bytes: int  # of memory beside the file and the cache, once a long prompt has run
    isa: str  # kernel path taken
    opt_version: str  # of paddle_lite_opt, as written in the file


@dataclass(frozen=True)
class StepProfile:
    """What one step of the plan took over some forwards."""

    name: str  # as in the file; linears that share their input: all names, with " + " between
    kind: str  # of _native.STEP_KINDS
    calls: int
    seconds: float
    bytes: int  # read of weights, tables and cache
    operations: int  # multiply-adds of linears and attention


def _step_profile(entry: _native.ProfileEntry) -> StepProfile:
    name = entry.name.decode("utf-8", "replace")
    kind = _native.STEP_KINDS[entry.kind]
    return StepProfile(name, kind, entry.calls, entry.seconds, entry.bytes, entry.operations)


def load(path, n_threads=None, n_ctx=None, mode: str = "int8", isa=None, kv_dtype=None) -> Model:
    """Opens a `.nb` file.

    n_threads: None = the best for this machine. n_ctx: most tokens of a session; None = the model's limit, at
    most 32768. mode: "int8" (activations in int8 groups) or "exact" (fp32, what the file's ops say). isa:
    kernel path, None = EDGE_KIT_ISA or the best. kv_dtype: of the cache, "f16" or "int8" (half the memory,
    and less to read where the context is long); None = fp16, in exact mode fp32.

    Raises FileFormatError, UnsupportedError, MemoryLimitError, UsageError.
    """
    if not isinstance(mode, str) or mode not in _native.MODES:
        raise UsageError(f"mode '{mode}', expected one of {', '.join(_native.MODES)}")
    n_threads, n_ctx = (
        None if value is None else whole_number(name, value, 1, 2**31 - 1)
        for name, value in (("n_threads", n_threads), ("n_ctx", n_ctx))
    )
    if isa is not None and not isinstance(isa, str):
        raise UsageError(f"isa {isa!r}, expected a name of lite_runtime.available_isas()")
    if kv_dtype is not None and (not isinstance(kv_dtype, str) or kv_dtype not in KV_DTYPES):
        raise UsageError(f"kv_dtype '{kv_dtype}', expected one of {', '.join(KV_DTYPES)}")
    path = file_path(path)
    # Decoding reads every weight for every token: a file that does not stay in memory is useless.
    size = os.path.getsize(path) if os.path.isfile(path) else 0
    machine.require_memory(size, f"{path}: the model")
    return Model(path, n_threads, n_ctx, mode, isa, kv_dtype)


class Model:
    """Made by `load`; also a context manager.

    path, info: ModelInfo, config, generation_config, manifest: the bundle's JSON files, {} where absent.
    Threads: everything may be called from any thread; forwards queue. `close` cancels and awaits what runs.
    """

    def __init__(self, path: str, n_threads, n_ctx, mode: str, isa, kv_dtype):
        self._pointer = None
        self._handles = set()  # of the sessions still open
        self._calls = threading.Condition()
        self._n_calls = 0
        self._profiling = threading.Lock()
        self.path = path
        self.mode = mode
        self.bundle = Bundle(path)
        self.config = self.bundle.read_json("config.json")
        self.manifest = self.bundle.read_json("manifest.json")
        self.generation_config = self.bundle.read_json("generation_config.json")
        options = _native.Options(
            struct_size=ctypes.sizeof(_native.Options),
            n_threads=n_threads or 0,
            n_ctx=n_ctx or 0,
            mode=_native.MODES[mode],
            isa=None if isa is None else isa.encode(),
            kv_dtype=_native.KV_DTYPES[kv_dtype],
        )
        pointer = ctypes.c_void_p()
        library = _native.library()
        _native.check(library.ek_model_open(os.fsencode(path), ctypes.byref(options), ctypes.byref(pointer)))
        self._pointer = pointer.value
        self.info = self._read_info()
        if n_ctx is not None:  # a context that was asked for must fit too
            needed = self.info.file_bytes + n_ctx * self.info.kv_bytes_per_token
            try:
                machine.require_memory(needed, f"{path}: the model with n_ctx {n_ctx}")
            except BaseException:
                self.close()
                raise

    def _read_info(self) -> ModelInfo:
        info = _native.ModelInfo(struct_size=ctypes.sizeof(_native.ModelInfo))
        _native.check(_native.library().ek_model_get_info(self._pointer, ctypes.byref(info)))
        values = {field.name: getattr(info, field.name) for field in fields(ModelInfo)}
        for name in ("isa", "opt_version"):
            values[name] = (values[name] or b"").decode("utf-8", "replace")
        return ModelInfo(**values)

    @functools.cached_property
    def text(self) -> Text:
        """Tokenizer and chat template, loaded on first use. FileFormatError if the file has none."""
        return Text(self.bundle)

    @functools.cached_property
    def eos_ids(self) -> frozenset:
        """Ids that end a generation: generation_config.json's, else config.json's, else the tokenizer's."""
        for source in (self.generation_config, self.config):
            found = source.get("eos_token_id")
            if found is not None:
                ids = found if isinstance(found, list) else [found]
                if not all(type(i) is int for i in ids):
                    raise FileFormatError(
                        f"{self.path}: eos_token_id {found!r} in its configuration, "
                        "expected a token id or several"
                    )
                return frozenset(ids)
        if "tokenizer.json" in self.bundle and self.text.eos_id is not None:
            return frozenset([self.text.eos_id])
        return frozenset()

    def session(self) -> Session:
        """A new, empty session."""
        pointer = ctypes.c_void_p()
        with self._use() as model:
            _native.check(_native.library().ek_session_create(model, ctypes.byref(pointer)))
            return Session(self, pointer.value)

    def restore(self, path) -> Session:
        """A new session with the tokens and the cache that `Session.save` wrote; it goes on as the saved one.

        Kernel path and threads need not be the same. Raises FileFormatError: no session file, or a damaged
        one; MismatchError: saved from another model, mode or kv_dtype; ContextFullError: longer than n_ctx;
        MemoryLimitError; EdgeKitError: the file cannot be read.
        """
        path = file_path(path)
        pointer = ctypes.c_void_p()
        library = _native.library()
        with self._use() as model:
            _native.check(library.ek_session_restore(model, os.fsencode(path), ctypes.byref(pointer)))
            return Session(self, pointer.value, _native.session_ids(pointer))

    def forward(self, segments) -> list:
        """One pass over [(session, ids, "last" | "all" | "none"), …]; appends ids to each session's cache.

        A session may stand in it once. Returns per segment float32 logits [V] ("last"), [T, V] ("all") or
        None ("none"), owned by the caller. On failure no cache has changed. Raises ContextFullError,
        CancelledError, UsageError.
        """
        segments = self._check_segments(segments)
        rows = [{"none": 0, "last": 1, "all": len(ids)}[logits] for _, ids, logits in segments]
        out = np.empty((sum(rows), self.info.n_vocab), np.float32)
        with self._use() as model, contextlib.ExitStack() as stack:
            # In one order everywhere, so that two forwards never wait for each other.
            in_order = sorted((session for session, _, _ in segments), key=id)
            pointers = {id(session): stack.enter_context(session._handle.use()) for session in in_order}
            native = (_native.Segment * len(segments))(
                *(
                    _native.Segment(pointers[id(session)], ids.ctypes.data, len(ids), _native.LOGITS[logits])
                    for session, ids, logits in segments
                )
            )
            _native.check(
                _native.library().ek_forward(model, native, len(segments), out.ctypes.data, out.size)
            )
            for session, ids, _ in segments:
                session._tokens.frombytes(ids.tobytes())
        results, row = [], 0
        for (_, _, logits), count in zip(segments, rows):
            results.append(
                {"none": None, "last": out[row] if count else None, "all": out[row : row + count]}[logits]
            )
            row += count
        return results

    def _check_segments(self, segments) -> list:
        try:
            segments = [(session, ids, logits) for session, ids, logits in segments]
        except (TypeError, ValueError):
            raise UsageError('expected segments [(session, ids, "last" | "all" | "none"), …]') from None
        for session, _, logits in segments:
            if not isinstance(session, Session):
                raise UsageError(f"{session!r} in a segment, expected a session")
            if session.model is not self:
                raise UsageError("the session belongs to another model")
            if not isinstance(logits, str) or logits not in _native.LOGITS:
                raise UsageError(f"logits '{logits}', expected one of {', '.join(_native.LOGITS)}")
        if not segments or len({id(session) for session, _, _ in segments}) != len(segments):
            raise UsageError("a forward takes at least one segment, and each session once")
        return [(session, self.check_ids(ids), logits) for session, ids, logits in segments]

    def check_ids(self, ids) -> np.ndarray:
        """Token ids as int32 [T], T >= 1, each inside the vocabulary; UsageError otherwise."""
        try:
            array = np.asarray(ids)
        except (ValueError, OverflowError) as error:
            raise UsageError(f"token ids are no row of integers: {error}") from None
        if array.shape == (0,):
            raise UsageError("no token ids (an empty prompt), expected one or more")
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise UsageError(
                f"token ids of shape {list(array.shape)} and type {array.dtype}, "
                "expected one or more integers in a row"
            )
        outside = np.flatnonzero((array < 0) | (array >= self.info.n_vocab))
        if outside.size:
            raise UsageError(
                f"token id {array[outside[0]]} at index {outside[0]}, expected 0 to {self.info.n_vocab - 1}"
            )
        return np.ascontiguousarray(array, np.int32)

    def read_bandwidth(self) -> float:
        """Bytes per second at which the model's threads can read the mapped file, at their best."""
        result = ctypes.c_double()
        with self._use() as model:
            _native.check(_native.library().ek_model_read_bandwidth(model, ctypes.byref(result)))
        return result.value

    @contextlib.contextmanager
    def profile(self):
        """Within it forwards note what each step takes; gives a function that returns the StepProfiles of the
        steps since it was called last, in the order of the plan. One at a time, or UsageError."""
        library = _native.library()
        if not self._profiling.acquire(blocking=False):
            raise UsageError(f"{self.path}: the model is being profiled already")
        try:
            with self._use() as model:
                _native.check(library.ek_model_profile_start(model))
            try:
                yield self._take_profile
            finally:
                with contextlib.suppress(UsageError), self._use() as model:  # closed: nothing to stop
                    _native.check(library.ek_model_profile_stop(model))
        finally:
            self._profiling.release()

    def _take_profile(self) -> list:
        count, entries = ctypes.c_size_t(), ()
        with self._use() as model:
            while True:
                room = len(entries)
                _native.check(
                    _native.library().ek_model_profile_take(
                        model, entries if room else None, room, ctypes.byref(count)
                    )
                )
                if count.value <= room:
                    return [_step_profile(entry) for entry in entries[: count.value]]
                entries = (_native.ProfileEntry * count.value)()
                entries[0].struct_size = ctypes.sizeof(_native.ProfileEntry)

    @contextlib.contextmanager
    def _use(self):
        """Gives the native pointer and keeps the model open meanwhile."""
        with self._calls:
            if self._pointer is None:
                raise UsageError(f"{self.path}: the model is closed")
            pointer = self._pointer
            self._n_calls += 1
        try:
            yield pointer
        finally:
            with self._calls:
                self._n_calls -= 1
                self._calls.notify_all()

    def close(self) -> None:
        """Cancels and awaits running calls, closes the sessions and unmaps the file. May be called twice."""
        with self._calls:
            pointer, self._pointer = self._pointer, None
        if pointer is None:
            return
        for handle in list(self._handles):
            handle.cancel()
        with self._calls:
            self._calls.wait_for(lambda: self._n_calls == 0)
        for handle in list(self._handles):
            handle.close()
        _native.library().ek_model_close(pointer)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_exception) -> None:
        self.close()

    def __del__(self):
        if hasattr(self, "_pointer"):
            self.close()
