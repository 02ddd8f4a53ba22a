"""One request of a batch: what it still has to put in, what it made, and whom it tells."""

from __future__ import annotations

import contextlib
import queue
import time
from dataclasses import dataclass
from typing import Optional

from .errors import UsageError
from .output_control import Logprobs
from .repetition import RepetitionDetector


@dataclass(frozen=True)
class BatchItem:
    """One step of an answer.

    text: what became certain with this step; with a reader, of the content alone, and `reasoning` apart.
    token: the new token's id; None in a last item that brings none.
    finish_reason: None until the last item: "stop", "length", "repetition" or "cancelled".
    cut_in: where "length" cut: in "thinking" or in the "answer".
    """

    text: str
    reasoning: str
    token: Optional[int]
    n_generated: int
    finish_reason: Optional[str] = None
    cut_in: Optional[str] = None
    logprobs: Optional[Logprobs] = None


class Request:
    """What `Batcher.submit` gives. Iterate over it, once, for the BatchItems; what ended the request before
    its answer was complete is raised there. A context manager: leaving it cancels.

    n_prompt, n_cached, n_generated: tokens of the prompt, of it found in a cache, and of the answer.
    submitted, started, first_token, ended: by time.perf_counter; None until then.
    timed_out: whether its deadline ended it. error: the exception that ended it, or None. finish_reason: that
    of the last item; None until then.
    """

    def __init__(self, ids, writer, session, owner, reader, closing, stop_at_repetition, timeout, on_item):
        """As in `Batcher.submit`."""
        self.n_prompt, self.n_cached = len(ids), 0
        self.submitted = time.perf_counter()
        self.started = self.first_token = self.ended = None
        self.timed_out, self.error, self.finish_reason = False, None, None
        self.owner = owner
        self._deadline = None if timeout is None else self.submitted + timeout
        self._cancelled = False
        self._items = queue.SimpleQueue() if on_item is None else None
        self._send = on_item or self._items.put
        # The rest is the worker's.
        self._ids = ids
        self._pending = ids  # int32, or a list: what its next forwards take in
        self._session, self._owns_session = session, session is None
        self._n_cancels = 0 if session is None else session._handle.n_cancels
        self._writer = writer
        self._reader, self._closing = reader, closing
        self._detector = RepetitionDetector() if stop_at_repetition else None

    @property
    def n_generated(self) -> int:
        """Tokens of the answer so far."""
        return self._writer.n_generated

    def cancel(self) -> None:
        """Ends it with the step that runs. Any thread, any time."""
        self._cancelled = True

    def __iter__(self):
        if self._items is None:
            raise UsageError("the items of this request go to its on_item")
        while True:
            item = self._items.get()
            if isinstance(item, Exception):
                self._items.put(item)  # for whoever asks again
                raise item
            yield item
            if item.finish_reason is not None:
                self._items.put(item)
                return

    def __enter__(self) -> Request:
        return self

    def __exit__(self, *_exception) -> None:
        self.cancel()

    def _is_due(self, now: float) -> bool:
        """Whether it must end now, whatever it is at."""
        if self._deadline is not None and now >= self._deadline:
            self.timed_out = True
        return self.timed_out or self._cancelled or self._session_cancelled()

    def _session_cancelled(self) -> bool:
        return self._session is not None and self._session._handle.n_cancels != self._n_cancels

    def _start(self, session) -> None:
        """Its place is free. `session` holds the first tokens of the prompt, or those before it."""
        if self._owns_session:
            self.n_cached = len(session)
            self._pending = self._ids[self.n_cached :]
            self._session, self._n_cancels = session, session._handle.n_cancels
        self.started = time.perf_counter()

    def _take(self, logits) -> BatchItem:
        """Its next step, from the logits [V] of its last token; with a finish_reason if the answer ends."""
        reader, session = self._reader, self._session
        token, logprobs = self._writer.choose(logits, session)
        if self.first_token is None:
            self.first_token = time.perf_counter()
        text, finish_reason = self._writer.write(token, session)
        self._pending, reasoning, part = [token], "", "answer"
        if reader is not None:
            piece = reader.add(token, text)
            reasoning, text = piece.reasoning, piece.content
            finish_reason = piece.finish_reason or finish_reason
            part = "thinking" if reader.inside else "answer"
            if finish_reason is None and piece.close_thinking:
                self._pending = [token, *self._closing]
                reasoning += reader.closed()
                if len(session) + len(self._pending) > session.model.info.n_ctx:
                    finish_reason = "length"
        if self._detector is not None and self._detector.add(token):
            finish_reason = finish_reason or "repetition"
        if finish_reason is None:
            return BatchItem(text, reasoning, token, self.n_generated, logprobs=logprobs)
        cut_in = part if finish_reason == "length" else None
        return self._last(finish_reason, text, reasoning, token, cut_in, logprobs)

    def _last(self, finish_reason, text="", reasoning="", token=None, cut_in=None, logprobs=None):
        """The last item, with what was held back."""
        text += self._writer.flush()
        if self._reader is not None:
            rest, content = self._reader.flush()
            reasoning, text = reasoning + rest, text + content
        return BatchItem(text, reasoning, token, self.n_generated, finish_reason, cut_in, logprobs)

    def _finish(self, last) -> None:
        """It has ended, with its last BatchItem or an exception."""
        self.ended = time.perf_counter()
        if not self._owns_session and self._session_cancelled():  # the native flag may still be up
            self._session._handle.cancel_came_late = True
        if isinstance(last, Exception):
            self.error = last
        else:
            self.finish_reason = last.finish_reason
        # Whoever listens holds this request as a rule: kept, the two would wait for Python's collector.
        send, self._send = self._send, None
        with contextlib.suppress(Exception):  # on_item's: there is nothing more to tell it
            send(last)
