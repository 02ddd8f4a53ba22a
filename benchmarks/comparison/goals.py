"""The goals that this kit holds itself to, judged from the turns of one benchmark.

Each goal gives one value per round, a ratio of figures of that round, so that a machine that is fast now and
slow later cancels out. It is met if the median over the calm rounds reaches the bound.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Callable

from .figures import Disturbed, ratio, summary

KIT = ("edge-kit", "int8")
MNN, LLAMA_CPP, CTRANSLATE2 = ("mnn", "int8"), ("llama-cpp", "q8_0"), ("ctranslate2", "int8")
EMPTY = 32  # tokens of context that count as an empty one


@dataclass(frozen=True)
class Round:
    """What the engines did in one round at one thread count: (engine, quant) → measure.Turn."""

    turns: dict

    def figure(self, who: tuple, kind: str, length: int) -> float | None:
        """`kind`: prefill_tps or decode_tps."""
        turn = self.turns.get(who)
        return None if turn is None else getattr(turn, kind).get(length)

    def own(self, goal: str) -> dict:
        turn = self.turns.get(KIT)
        return {} if turn is None else turn.own_goals.get(goal, {})


@dataclass(frozen=True)
class Goal:
    """value: of a Round, or None where something that it needs was not measured."""

    text: str
    bound: float
    value: Callable
    is_share: bool = False


def versus(kind: str, length: int, peer: tuple) -> Callable:
    """This kit's figure over a peer's."""
    return lambda round: ratio(round.figure(KIT, kind, length), round.figure(peer, kind, length))


def versus_best(kind: str, length: int) -> Callable:
    """This kit's figure over that of the best of all others."""

    def value(round: Round) -> float | None:
        others = [round.figure(who, kind, length) for who in round.turns if who[0] != KIT[0]]
        return ratio(round.figure(KIT, kind, length), max(filter(None, others), default=None))

    return value


def own_median(goal: str, name: str = "shares") -> Callable:
    """The median of this kit's own samples of that name."""

    def value(round: Round) -> float | None:
        samples = round.own(goal).get(name)
        return _own(statistics.median(samples), round.own(goal)) if samples else None

    return value


def own_ratio(goal: str, case: str, base: str) -> Callable:
    """The median, over the turns in which two cases alternated, of the one's speed over the other's."""

    def value(round: Round) -> float | None:
        samples = round.own(goal)
        pairs = list(zip(samples.get(case, []), samples.get(base, [])))
        return _own(statistics.median(above / below for above, below in pairs), samples) if pairs else None

    return value


def _own(value: float, samples: dict) -> float:
    return Disturbed(value) if samples.get("disturbed") else value


GOALS = [
    Goal("prefill of 128 against CTranslate2 int8", 1.2, versus("prefill_tps", 128, CTRANSLATE2)),
    Goal("prefill of 512 against CTranslate2 int8", 1.2, versus("prefill_tps", 512, CTRANSLATE2)),
    Goal("prefill of 128 against llama.cpp Q8_0", 3.0, versus("prefill_tps", 128, LLAMA_CPP)),
    Goal("prefill of 512 against llama.cpp Q8_0", 3.0, versus("prefill_tps", 512, LLAMA_CPP)),
    Goal("prefill of 512, share of the best path's int8 peak", 0.68, own_median("arithmetic"), True),
    Goal("prefill of 512, share of AVX512-VNNI's peak", 0.68, own_median("arithmetic", "vnni_shares"), True),
    Goal("prefill of 32 against the best peer", 1.2, versus_best("prefill_tps", 32)),
    Goal("decode against MNN int8", 1.0, versus("decode_tps", EMPTY, MNN)),
    Goal("decode against llama.cpp Q8_0", 1.5, versus("decode_tps", EMPTY, LLAMA_CPP)),
    Goal("decode against the best peer", 1.0, versus_best("decode_tps", EMPTY)),
    Goal("decode, share of the read bandwidth", 0.93, own_median("bandwidth"), True),
    Goal("decode at 2,000 of context, of an empty one", 0.9, own_ratio("long_context", "2000", "0"), True),
    Goal("decode at 8,000 of context, of an empty one", 0.8, own_ratio("long_context", "8000", "0"), True),
    Goal("4 sessions at once, of the speed of one", 3.5, own_ratio("many_sessions", "4", "1")),
    Goal("8 sessions at once, of the speed of one", 6.0, own_ratio("many_sessions", "8", "1")),
    Goal("speculation, replayed answers that repeat their prompt", 1.5, own_median("speculation", "repeats")),
    Goal("speculation where nothing matches", 0.98, own_median("speculation", "no_match"), True),
]


def judge(rounds: dict) -> list:
    """One line per goal and thread count at which it was measured, as dicts.

    rounds: threads → [Round]. A line has `values` per round with their median, min and max, and `met`;
    a goal that nothing was measured for stands once, with `threads` None.
    """
    lines = []
    for goal in GOALS:
        measured = []
        for threads, turns in sorted(rounds.items()):
            values = [value for value in map(goal.value, turns) if value is not None]
            if values:
                measured.append({"threads": threads, **summary(values)})
        for found in measured or [{"threads": None}]:
            met = found["median"] >= goal.bound if measured else None
            lines.append(
                {"goal": goal.text, "bound": goal.bound, "is_share": goal.is_share, "met": met, **found}
            )
    return lines
