"""Prompts of a known number of tokens, made without knowing a server's tokenizer.

Short common words are one token each in the vocabularies of today's models, so the server's own count of a
prompt tells how many of them are needed.
"""

from __future__ import annotations

import random

from lite_runtime.errors import UsageError

WORDS = (
    "time year people way day man thing world life hand part child eye place work week case point number "
    "group problem fact water room money story month lot right study book word house side kind head friend "
    "father power hour game line end member law car city name team minute idea body back parent face level "
    "office door health person art war history party result change reason research girl moment "
    "air teacher force education foot boy age policy music market sense plan land paper field color table "
    "wall star tree river road bank ship light sound space home town street food fire glass stone wood gold"
).split()
_TRIES = 4


def prompt(index: int, n_words: int, seed: int) -> str:
    """The index-th text of that many words, with a beginning of its own; `seed` gives other texts."""
    chosen = random.Random(f"{seed}/{n_words}/{index}").choices(WORDS, k=n_words)
    shuffled = random.Random(seed).sample(WORDS, len(WORDS))
    # The first words count through all, so that no two texts begin alike before the list is used up.
    chosen[0] = shuffled[index % len(WORDS)]
    if n_words > 1:
        chosen[1] = WORDS[(index // len(WORDS)) % len(WORDS)]
    return " ".join(chosen)


def shared(n_words: int, seed: int) -> str:
    """A beginning for all prompts of a run."""
    return " ".join(random.Random(f"{seed}/shared").choices(WORDS, k=n_words))


class Prompts:
    """Texts of `n_tokens` each, of which the first `n_shared`, about, are the same for all.

    count: text -> tokens, as the server counts them. UsageError where it cannot be met.
    """

    def __init__(self, n_tokens: int, count, seed: int = 0, n_shared: int = 0):
        self._seed, self._n_shared = seed, n_shared
        self._n_words = n_tokens
        counts = []
        for attempt in range(_TRIES):
            if self._n_words <= n_shared:
                counted = f" (one of {n_tokens} words made {counts[0]})" if counts else ""
                raise UsageError(f"{n_tokens} prompt tokens leave no words to vary{counted}: ask for more")
            counts.append(count(self.text(-1 - attempt)))
            if counts[-1] == n_tokens:
                return
            self._n_words += n_tokens - counts[-1]
        raise UsageError(
            f"the server's tokenizer makes {', '.join(map(str, counts))} tokens of texts that should have "
            f"{n_tokens}: its words are not one token each"
        )

    def text(self, index: int) -> str:
        """Negative indices are never asked for in a run."""
        own = prompt(index, self._n_words - self._n_shared, self._seed)
        return f"{shared(self._n_shared, self._seed)} {own}" if self._n_shared else own


def arrivals(rate: float, n: int, seed: int) -> list:
    """Seconds at which n requests start: a Poisson process of `rate` per second, given that n came in time.

    Given their number, the arrivals of such a process are independent and uniform over the time; so the rate
    that was asked for is kept exactly, and runs of the same seed at other rates are each other stretched.
    """
    draw = random.Random(f"{seed}/arrivals")
    times = sorted(draw.random() for _ in range(n))
    return [moment * n / rate for moment in times]
