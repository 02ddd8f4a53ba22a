"""A model that goes round in circles, seen in its tokens."""

from __future__ import annotations

import dataclasses

import numpy as np

SHORTEST, LONGEST = 32, 256  # tokens of the n-gram; a shorter circle fills one that is a multiple of it
TIMES = 3  # in a row


class RepetitionDetector:
    """Tells when the last tokens are one n-gram of SHORTEST tokens or more several times in a row."""

    def __init__(self):
        self._lengths = np.arange(LONGEST, SHORTEST - 1, -1)
        self._n_same = np.zeros(len(self._lengths), np.int64)  # tokens in a row, as so long before
        self._history = np.full(4 * LONGEST, -1, np.int64)
        self._n = LONGEST

    def add(self, token: int) -> bool:
        """Whether with `token` the last TIMES * n tokens are such a repetition, for an n from SHORTEST to
        LONGEST."""
        if self._n == len(self._history):
            self._history[:LONGEST] = self._history[-LONGEST:]
            self._n = LONGEST
        earlier = self._history[self._n - LONGEST : self._n - SHORTEST + 1]
        self._n_same += 1
        self._n_same *= earlier == token
        self._history[self._n] = token
        self._n += 1
        return bool((self._n_same >= (TIMES - 1) * self._lengths).any())


def until_repetition(items):
    """The Items of a generation; one that repeats itself ends with finish_reason "repetition"."""
    detector = RepetitionDetector()
    for item in items:
        if item.finish_reason is None and detector.add(item.token):
            yield dataclasses.replace(item, finish_reason="repetition")
            return
        yield item
