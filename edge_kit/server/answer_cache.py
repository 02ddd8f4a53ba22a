"""Greedy answers that are kept: the same request gets the same answer without a forward."""

from __future__ import annotations

import collections
import sys
import threading
from dataclasses import dataclass

_ITEM_BYTES = 400  # of a BatchItem beside its texts: some more than sys.getsizeof tells of it and its fields
_LOGPROB_BYTES = 160  # of each (id, logprob)


@dataclass(frozen=True)
class Kept:
    """items: all BatchItems of the answer. has_reasoning: whether there is a block of reasoning. n_reasoning:
    tokens of it. n_bytes: of memory, about."""

    items: list
    has_reasoning: bool
    n_reasoning: int
    n_bytes: int


class AnswerCache:
    """The answers used most recently, within a budget of bytes. Any thread.

    A key is a Question's cache_key; for None nothing is kept.
    """

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self.n_bytes = self.hits = self.misses = 0
        self._answers = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, key):
        """What is kept of an answer, or None."""
        if key is None or not self.max_bytes:
            return None
        with self._lock:
            kept = self._answers.get(key)
            if kept is None:
                self.misses += 1
                return None
            self.hits += 1
            self._answers.move_to_end(key)
            return kept

    def put(self, key, items: list, has_reasoning: bool, n_reasoning: int) -> None:
        """Keeps a whole answer; the oldest ones past the budget go."""
        kept = Kept(items, has_reasoning, n_reasoning, sum(map(_size, items)))
        if key is None or kept.n_bytes > self.max_bytes:
            return
        with self._lock:
            self._drop(key)
            self._answers[key] = kept
            self.n_bytes += kept.n_bytes
            while self.n_bytes > self.max_bytes:
                self._drop(next(iter(self._answers)))

    def __len__(self) -> int:
        return len(self._answers)

    def _drop(self, key) -> None:
        kept = self._answers.pop(key, None)
        self.n_bytes -= kept.n_bytes if kept else 0


def _size(item) -> int:
    n_logprobs = 0 if item.logprobs is None else 1 + len(item.logprobs.top)
    texts = sys.getsizeof(item.text) + sys.getsizeof(item.reasoning)
    return _ITEM_BYTES + texts + n_logprobs * _LOGPROB_BYTES
