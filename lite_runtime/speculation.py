"""Prompt-lookup speculation: several tokens for one pass over the weights.

What an answer repeats, of its prompt or of itself, is guessed from where its last tokens stood before. The
guess, a draft, is run in one forward together with the token that is due; it is kept as far as the tokens
then sampled are the draft's (Saxena 2023, "Prompt Lookup Decoding"). Since a row's logits do not depend on
what else is in the forward, and random numbers belong to places, the answer is the same with and without.

Drafter and RowCost know token ids and seconds only; Speculation binds them to a session. A forward over many
sessions takes each one's `inputs`, wants "all" logits, and hands each its rows by `give`.
"""

from __future__ import annotations

LONGEST = 3  # tokens looked up together
MOST_DRAFT = 15  # tokens: one block of 16 rows with the token that is due
_LEVELS = 8  # matches longer than this count alike
_MEMORY = 0.95  # what a try still counts for after the next one of its level
_PRIOR_TRIES = 2.0
_CAUTION = 1.5  # a row counts as so much dearer: what a text without matches tries in vain stays below 2 %


class NGramIndex:
    """Where the last tokens of a growing sequence stood before. Constant time per token."""

    def __init__(self, ids=()):
        self.ids = list(ids)
        # For n = 1, 2, …: n tokens -> the place after their latest occurrence that something follows.
        self._places = [
            dict(zip(zip(*(self.ids[first:] for first in range(n))), range(n, len(self.ids))))
            for n in range(1, LONGEST + 1)
        ]

    def append(self, token: int) -> None:
        """Adds a token to the sequence."""
        end = len(self.ids)
        for n, places in enumerate(self._places[:end], 1):
            places[tuple(self.ids[end - n :])] = end
        self.ids.append(token)

    def find(self):
        """(place, n): ids[place - n : place] is the latest earlier occurrence of the last n tokens, for the
        largest n <= LONGEST that has one; (None, 0) without any."""
        for n in range(min(LONGEST, len(self.ids)), 0, -1):
            place = self._places[n - 1].get(tuple(self.ids[-n:]))
            if place is not None:
                return place, n
        return None, 0

    def read(self, place: int, n: int) -> list:
        """`n` tokens from `place` on; behind the end of the sequence those that were read first follow."""
        read = self.ids[place : place + n]
        for index in range(n - len(read)):
            read.append(read[index])
        return read


class RowCost:
    """What one more row costs in a forward, as a share of a forward of one row: measured as it goes.

    Where weights are streamed from memory it is little; where arithmetic bounds a forward it may be much.
    """

    def __init__(self):
        self.value = 0.05
        self._one_row = None  # seconds

    def record(self, rows: int, seconds: float) -> None:
        """A forward of `rows` took `seconds`."""
        if rows == 1:
            self._one_row = self._one_row or seconds
            self._one_row += 0.2 * (seconds - self._one_row)
        elif self._one_row:
            measured = (seconds / self._one_row - 1) / (rows - 1)
            # Bounded: one step that something else held up must not end drafting, nor one draft pay for all.
            self.value += 0.1 * (min(max(measured, 0.01), 0.5) - self.value)


class Drafter:
    """Guesses how one sequence of token ids goes on.

    It follows one earlier place as long as that was right. How often a match of n tokens was right about the
    next one is counted whether or not it was drafted: where nothing matches, finding that out costs nothing.
    """

    def __init__(self, ids=()):
        self._index = NGramIndex(ids)
        self._place, self._matched = self._index.find()
        # Per tokens matched, with fading memory; at first as if n of n + 2 had been right.
        self._tries = [_PRIOR_TRIES] * (_LEVELS + 1)
        self._hits = [_PRIOR_TRIES * n / (n + 2) for n in range(_LEVELS + 1)]

    def append(self, token: int) -> None:
        """The sequence goes on with `token`."""
        hit = False
        if self._place is not None:
            hit = self._index.ids[self._place] == token
            level = min(self._matched, _LEVELS)
            self._tries[level] = _MEMORY * self._tries[level] + 1
            self._hits[level] = _MEMORY * self._hits[level] + hit
        self._index.append(token)
        if hit:
            self._place, self._matched = self._place + 1, self._matched + 1
        else:
            self._place, self._matched = self._index.find()

    def propose(self, most: int, row_cost: float) -> list:
        """A draft of at most `most` tokens: as many as promise the most tokens for their cost; often none."""
        if self._place is None:
            return []
        length, best = 0, 1.0  # tokens per cost of a forward without a draft
        chance, expected = 1.0, 1.0
        for n in range(1, min(most, MOST_DRAFT) + 1):
            level = min(self._matched + n - 1, _LEVELS)
            chance *= self._hits[level] / self._tries[level]
            expected += chance
            value = expected / (1 + _CAUTION * row_cost * n)
            if value > best:
                length, best = n, value
        return self._index.read(self._place, length)


class Speculation:
    """Drafts of one session, and the logits that they left ready.

    What is ready lies in the cache beyond the tokens that the session shows; whatever else uses the session
    first drops it, and so does a cancel. For each token in turn: `take(token)`; if that gives None, a forward
    of `inputs(token, most)` with "all" logits, then `give(rows, seconds)`.
    """

    def __init__(self, session):
        self._session = session
        self._n_cancels = session._handle.n_cancels
        self._drafter = Drafter(session._tokens)
        self._cost = RowCost()
        self._inputs = []  # of the last forward
        self._rows = ()  # their logits
        self._next = 0  # the first of `_inputs` that is still a guess

    def take(self, token: int):
        """The session goes on with `token`: its logits [V] if they are ready, else None."""
        self._drafter.append(token)
        ready = self._next < len(self._inputs) and self._inputs[self._next] == token
        if not ready or self._session._handle.n_cancels != self._n_cancels or not self._session._take(token):
            self._inputs, self._rows = [], ()
            return None
        self._next += 1
        return self._rows[self._next - 1]

    def inputs(self, token: int, most: int) -> list:
        """`token`, which `take` had nothing for, and a draft of at most `most` tokens."""
        self._inputs = [token, *self._drafter.propose(most, self._cost.value)]
        return self._inputs

    def give(self, rows, seconds: float):
        """Takes the logits [T, V] of the inputs after their forward; gives those of the token due."""
        self._cost.record(len(rows), seconds)
        self._session._set_aside(len(rows) - 1)
        self._rows, self._next = rows, 1
        return rows[0]
