"""A model that goes round in circles, seen in its tokens."""

from __future__ import annotations

import dataclasses

N_GRAM = 32  # tokens
TIMES = 3  # in a row


class RepetitionDetector:
    """Tells when the last tokens are one n-gram several times in a row. Constant time per token."""

    def __init__(self):
        self._last = [None] * N_GRAM  # a ring
        self._next = 0
        self._n_same = 0  # tokens in a row that were the same N_GRAM tokens before

    def add(self, token: int) -> bool:
        """Whether with `token` the last TIMES * N_GRAM tokens are such a repetition."""
        self._n_same = self._n_same + 1 if self._last[self._next] == token else 0
        self._last[self._next] = token
        self._next = (self._next + 1) % N_GRAM
        return self._n_same >= (TIMES - 1) * N_GRAM


def until_repetition(items):
    """The Items of a generation; one that repeats itself ends with finish_reason "repetition"."""
    detector = RepetitionDetector()
    for item in items:
        if item.finish_reason is None and detector.add(item.token):
            yield dataclasses.replace(item, finish_reason="repetition")
            return
        yield item
