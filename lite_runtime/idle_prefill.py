"""Prefill in idle time: what the next prompts of some owners will begin with, put into a pool's sessions.

A template that drops earlier thinking moves the answer behind it. Whoever serves the conversation lines up
what its next prompt begins with; it is computed while nobody waits.
"""

from __future__ import annotations

import collections
import threading

from .errors import EdgeKitError

IDLE_CHUNK = 64  # tokens that are prefilled in idle time before a request may go first
MOST_LINED_UP = 64  # beginnings; past that the oldest is forgotten


class IdlePrefill:
    """`line_up`, `forget` and `stop` are for any thread, `step` and `pause` for the one that does it."""

    def __init__(self, model, pool):
        self._model = model
        self._pool = pool
        self._lock = threading.Lock()  # guards what follows
        self._lined_up = collections.OrderedDict()  # key -> (owner, ids), the newest last
        self._stopped = False
        self._session = self._job = None  # at work on this one of them
        self.n_tokens = 0  # done so far

    def __bool__(self) -> bool:
        """Whether there is something to do."""
        return bool(self._lined_up)

    def line_up(self, ids, owner) -> None:
        """`ids`, int32 [T], in place of what was lined up for this owner before. None is nobody: a next
        one."""
        key = object() if owner is None else owner
        with self._lock:
            if self._stopped:
                return
            self._lined_up.pop(key, None)
            self._lined_up[key] = (owner, ids)
            if len(self._lined_up) > MOST_LINED_UP:
                self._lined_up.popitem(last=False)

    def forget(self, owner) -> None:
        """The owner's next prompt has come."""
        with self._lock:
            if owner is not None:
                self._lined_up.pop(owner, None)

    def stop(self) -> None:
        """Forgets all, for ever, and ends the chunk that runs."""
        with self._lock:
            self._stopped = True
            self._lined_up.clear()
            if self._session is not None:
                self._session.cancel()

    def step(self) -> None:
        """Does a chunk of what was lined up first."""
        with self._lock:
            key, job = next(iter(self._lined_up.items()), (None, None))
        if job is None:
            return
        owner, ids = job
        try:
            if self._job is not job:
                self.pause()
                done = self._pool.n_cached(ids) == len(ids) or not self._begin(job)
            if self._job is job:
                chunk = ids[len(self._session) :][:IDLE_CHUNK]
                self._model.forward([(self._session, chunk, "none")])
                self.n_tokens += len(chunk)
                done = len(self._session) == len(ids)
        except EdgeKitError:  # no memory, closed, or cancelled: the next request will tell
            done = True
        if done:
            self.pause()
            with self._lock:
                if self._lined_up.get(key) is job:
                    del self._lined_up[key]

    def pause(self) -> None:
        """Gives the session at work back to the pool, so that a request finds what was done. `step` goes on
        with it."""
        with self._lock:
            session, job = self._session, self._job
            self._session = self._job = None
        if session is not None:
            self._pool.give(session, job[0])

    def _begin(self, job) -> bool:
        """Takes a session for the job; False once all is stopped."""
        owner, ids = job
        session = self._pool.take(ids, owner)
        with self._lock:
            stopped = self._stopped
            if not stopped:
                self._session, self._job = session, job
        if stopped:
            self._pool.give(session, owner)
        return not stopped
