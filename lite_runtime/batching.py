"""Continuous batching: the answers of many requests, made together.

    with Batcher(model) as batcher:
        for item in batcher.submit(model.text.encode_chat(messages)):
            print(item.text, end="", flush=True)

Decoding reads all weights once per forward, be it for one token or for one token of each of eight answers.
So one worker thread runs one forward after the other, each with a row of every running answer and a piece of
the prompts that are still to be read. Requests join and leave between any two of them. Since a row's logits
do not depend on what else is in the forward, a request gets the very answer that it would get alone.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import math
import numbers
import threading
import time
from dataclasses import dataclass

from .answer import ContentConstraint
from .batch_request import BatchItem, Request
from .errors import CancelledError, EdgeKitError, QueueFullError, ShuttingDownError, UsageError, whole_number
from .generate import Writer, prompt_ids
from .idle_prefill import IdlePrefill
from .session import BLOCK, Session

__all__ = ["BatchItem", "BatchStats", "Batcher", "Request"]

_MEMORY = 0.8  # of the mean time that an answer takes, after the next one


@dataclass(frozen=True)
class BatchStats:
    """What a Batcher is at, and what it did since it was made.

    waiting, running: requests now; of those running, `prefilling` have no token yet.
    steps, step_seconds: forwards, and the time from the start of each to the last item it gave.
    prompt_tokens: of requests begun; cached_tokens: of these, those found in a cache.
    ended: requests by how: a finish reason, "error", "refused" (no place in the queue) or "shutdown".
    batch_sizes: steps by the number of requests in them.
    idle_tokens: prefilled in idle time.
    """

    waiting: int
    running: int
    prefilling: int
    steps: int
    step_seconds: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    ended: dict
    batch_sizes: dict
    idle_tokens: int


class Batcher:
    """Any thread may submit. The model may be used beside it; its forwards queue."""

    def __init__(self, model, max_batch=8, prefill_chunk=64, max_queue=64, pool=None):
        """max_batch: requests that run together. prefill_chunk: rows of prompts in one forward; how long the
        running answers wait for it. max_queue: requests that may wait. pool: a SessionPool to take sessions
        from and give them back to; `close` leaves it open."""
        self.model = model
        self.max_batch = whole_number("max_batch", max_batch, 1, 1024)
        self.prefill_chunk = whole_number("prefill_chunk", prefill_chunk, 1, 1 << 20)
        self.max_queue = whole_number("max_queue", max_queue, 0, 1 << 20)
        self._pool = pool
        self._idle = IdlePrefill(model, pool)
        self.error = None  # what ended the worker, which should not happen
        self._changed = threading.Condition()  # guards what follows
        self._waiting = collections.deque()
        self._running = []  # in the order in which they began
        self._closing = False
        self._ended, self._batch_sizes = collections.Counter(), collections.Counter()
        self._step_seconds = 0.0
        self._prompt_tokens = self._cached_tokens = self._generated_tokens = 0
        self._answer_seconds = None  # mean, from the start of a request to its end
        self._worker = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._worker.start()
        atexit.register(self.close, 0)  # Python must not end amid a native call

    def submit(
        self,
        prompt,
        session=None,
        owner=None,
        reader=None,
        closing=(),
        stop_at_repetition=False,
        timeout=None,
        on_item=None,
        **options,
    ) -> Request:
        """Lines the token ids `prompt` up for an answer.

        session: what the prompt is appended to; it stays the caller's, who leaves it alone meanwhile.
            Without, one of the pool's that has a beginning of the prompt, for `owner`, or a new one.
        reader: an AnswerReader, which then has the stop strings, the repetition stop and the thinking budget.
            A constraint holds outside of the reasoning alone.
        closing: token ids that close the reasoning when the budget is used up.
        stop_at_repetition: end an answer that goes round in circles.
        timeout: seconds from now until it ends as cancelled, be it waiting or running.
        on_item: called by the worker, in place of iterating, with each BatchItem, or with the exception that
            ended the request. It must not block; what it raises ends the request.
        options: those of `session.generate` but `speculate`.

        Raises UsageError, ContextFullError; QueueFullError; ShuttingDownError after `shut_down`.
        """
        self._check(session, reader, timeout)
        if reader is not None and options.get("constraint") is not None:
            options["constraint"] = ContentConstraint(options["constraint"], reader)
        writer = Writer(self.model, **options)
        ids = prompt_ids(self.model, prompt, 0 if session is None else len(session))
        closing = [int(i) for i in self.model.check_ids(closing)] if len(closing) else []
        with self._changed:
            if self._closing:
                raise ShuttingDownError("no more answers are begun: shutting down")
            others = [*self._running, *self._waiting]
            if session is not None and any(other._session is session for other in others):
                raise UsageError("the session is in use by another request; wait until that has ended")
            self._check_place(0)
            request = Request(
                ids, writer, session, owner, reader, closing, stop_at_repetition, timeout, on_item
            )
            self._waiting.append(request)
            self._idle.forget(owner)
            self._changed.notify_all()
        return request

    def check_place(self, n_coming: int = 0) -> None:
        """Raises QueueFullError if `submit` would, were `n_coming` more requests there: for whoever has much
        to do before that."""
        with self._changed:
            self._check_place(n_coming)

    def prefill(self, ids, owner=None) -> None:
        """Lines up the token ids which `owner`'s next prompt will begin with, for the time when nothing runs
        and nothing waits. They go to the pool; a request that comes meanwhile waits for a chunk at most and
        finds what was done. Of an owner the newest count; none do while a request of theirs waits or runs, or
        where the context does not hold them. Without a pool, or after `shut_down`, nothing happens."""
        if self._pool is None or not len(ids):
            return
        ids = self.model.check_ids(ids)
        with self._changed:
            others = (*self._running, *self._waiting)
            busy = owner is not None and any(other.owner == owner for other in others)
            if not busy and len(ids) <= self.model.info.n_ctx:
                self._idle.line_up(ids, owner)
                self._changed.notify_all()

    def stats(self) -> BatchStats:
        """A snapshot."""
        with self._changed:
            return BatchStats(
                len(self._waiting),
                len(self._running),
                sum(request.first_token is None for request in self._running),
                sum(self._batch_sizes.values()),
                self._step_seconds,
                self._prompt_tokens,
                self._cached_tokens,
                self._generated_tokens,
                dict(self._ended),
                dict(self._batch_sizes),
                self._idle.n_tokens,
            )

    def shut_down(self) -> None:
        """From now on nothing is begun: requests that wait, or come, get a ShuttingDownError. Those that run
        go on."""
        with self._changed:
            self._closing = True
            refused, self._waiting = list(self._waiting), collections.deque()
            self._ended.update(["shutdown"] * len(refused))
            self._idle.stop()
            self._changed.notify_all()
        for request in refused:
            request._finish(ShuttingDownError("shutting down before this request's turn came"))

    def close(self, timeout=None) -> None:
        """`shut_down`, and awaits the running answers; those that still run after `timeout` seconds end as
        cancelled. May be called twice."""
        self.shut_down()
        self._worker.join(timeout)
        with self._changed:
            for request in self._running:
                request.cancel()
        self._worker.join()
        atexit.unregister(self.close)

    def __enter__(self) -> Batcher:
        return self

    def __exit__(self, exception_type, *_exception) -> None:
        self.close(None if exception_type is None else 0)

    def _check(self, session, reader, timeout) -> None:
        if session is not None and (not isinstance(session, Session) or session.model is not self.model):
            raise UsageError(f"session {session!r}, expected a session of the batcher's model")
        if reader is not None and not hasattr(reader, "add"):
            raise UsageError(f"reader {reader!r}, expected an AnswerReader")
        if timeout is not None and (not isinstance(timeout, numbers.Real) or not 0 < timeout < math.inf):
            raise UsageError(f"timeout {timeout!r}, expected seconds, more than 0")

    def _check_place(self, n_coming: int) -> None:
        n_waiting = len(self._waiting) + n_coming
        if len(self._running) + n_waiting >= self.max_batch + self.max_queue:
            self._ended["refused"] += 1
            raise QueueFullError(
                f"{len(self._running)} requests run and {n_waiting} wait, {self.max_queue} may wait: "
                "try again later",
                self._retry_after(),
            )

    def _retry_after(self) -> float:
        """Seconds until a place is free: answers end one after the other, max_batch of them at a time."""
        if self._answer_seconds is not None:
            return self._answer_seconds / self.max_batch
        now = time.perf_counter()
        return max((now - request.started for request in self._running if request.started), default=1.0)

    # What follows runs in the worker.

    def _work(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:  # a fault of this file; but nobody shall wait for ever
            self.error = error
            self.shut_down()
            for request in list(self._running):
                self._leave(request, error)
            raise
        finally:
            self._idle.pause()

    def _turn(self) -> bool:
        """Lets requests leave and join, then runs a forward. False when there is nothing left to do."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._running or self._closing or self._idle)
            if self._closing and not self._running:
                return False
            now = time.perf_counter()
            due = [request for request in (*self._running, *self._waiting) if request._is_due(now)]
            for request in due:
                (self._running if request in self._running else self._waiting).remove(request)
            n_begun = min(self.max_batch - len(self._running), len(self._waiting))
            begun = [self._waiting.popleft() for _ in range(n_begun)]
            self._running += begun
        if not (due or self._running):
            self._idle.step()
            return True
        self._idle.pause()
        for request in due:
            self._leave(request, request._last("cancelled"))
        for request in begun:
            self._begin(request)
        if self._running:
            self._step()
        return True

    def _begin(self, request) -> None:
        session = request._session
        try:
            if session is None and self._pool is not None:
                session = self._pool.take(request._ids, request.owner)
            elif session is None:
                session = self.model.session()
        except Exception as error:
            self._leave(request, error)
            return
        request._start(session)
        self._prompt_tokens += request.n_prompt
        self._cached_tokens += request.n_cached

    def _inputs(self) -> list:
        """[(request, how many of its pending tokens go in)]. Every answer's one token. Of the prompts
        prefill_chunk together: the oldest one gets at least half, so that it ends; the others share what is
        left, the shortest first, so that a short one need not wait for a long one."""
        counts = {request: 1 for request in self._running}
        reading = [request for request in self._running if len(request._pending) > 1]
        if reading:
            oldest, *others = reading
            n_oldest = len(oldest._pending)
            left = max(self.prefill_chunk // 2, self.prefill_chunk - n_oldest)
            for request in sorted(others, key=lambda request: len(request._pending)):
                counts[request] = min(left, len(request._pending))
                left -= counts[request]
            n_others = sum(counts[request] for request in others)
            counts[oldest] = min(n_oldest, max(1, self.prefill_chunk - n_others))
        return [(request, n) for request, n in counts.items() if n]

    def _step(self) -> None:
        began = time.perf_counter()
        inputs = self._inputs()
        segments = [
            (request._session, request._pending[:n], "last" if n == len(request._pending) else "none")
            for request, n in inputs
        ]
        try:
            rows = self.model.forward(segments)
        except Exception:  # of one of them, and no cache has changed: each for itself will tell
            rows = None
        for index, (request, n) in enumerate(inputs):
            try:
                logits = rows[index] if rows else self.model.forward(segments[index : index + 1])[0]
                self._go_on(request, n, logits)
            except CancelledError:  # of its session: it is due before the next step
                continue
            except Exception as error:
                self._leave(request, error)
        with self._changed:
            self._batch_sizes[len(inputs)] += 1
            self._step_seconds += time.perf_counter() - began

    def _go_on(self, request, n: int, logits) -> None:
        """`n` pending tokens of the request are in its session; logits [V] behind the last one, or None."""
        request._pending = request._pending[n:]
        if logits is None:
            return
        item = request._take(logits)
        self._generated_tokens += 1
        if item.finish_reason is not None:
            self._leave(request, item)
            return
        if self._pool is not None and request._owns_session and item.n_generated == 1:
            if len(request._ids) // BLOCK > request.n_cached // BLOCK:  # full blocks that nobody else had
                with contextlib.suppress(EdgeKitError):  # no memory for it: the answer goes on
                    self._pool.share(request._session)
        request._send(item)

    def _leave(self, request, last) -> None:
        """The request has ended, with its last BatchItem or an exception. Its place and its session are free
        before anybody is told: whoever is may come again at once."""
        failed = isinstance(last, Exception)
        with self._changed:
            if request in self._running:
                self._running.remove(request)
            self._ended["error" if failed else last.finish_reason] += 1
            if request.first_token is not None:
                seconds = time.perf_counter() - request.started
                mean = seconds if self._answer_seconds is None else self._answer_seconds
                self._answer_seconds = _MEMORY * mean + (1 - _MEMORY) * seconds
        if request._owns_session and request._session is not None:
            if failed or self._pool is None or not len(request._session):
                request._session.close()
            else:
                self._pool.give(request._session, request.owner)
        request._finish(last)
