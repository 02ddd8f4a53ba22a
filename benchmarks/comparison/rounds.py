"""Rounds of interleaved turns: in each, every engine runs once at every thread count."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.engines.base import Engine, EngineError

from . import environments, goals
from .machine_state import Ceilings, leave_page_cache
from .measure import Turn, take_own_goals, take_turn
from .worker_process import WorkerProcess


@dataclass
class Contestant:
    """An engine at one quantization, its converted model, and its turns: threads → [Turn or None]."""

    engine: Engine
    quant: str
    folder: Path
    fidelity: dict = field(default_factory=dict)
    turns: dict = field(default_factory=dict)
    errors: list = field(default_factory=list)

    @property
    def key(self) -> tuple:
        return self.engine.name, self.quant


def run_rounds(
    contestants: list, threads: list, repeat: int, n_vocab: int, ceilings: Ceilings, work, say
) -> None:
    """Fills in each contestant's turns. One that fails at a thread count does not run there again.

    say: is told of each turn. Every second round runs backwards, so that nobody always follows the same.
    """
    for contestant in contestants:
        leave_page_cache(contestant.folder)
    failed = set()
    for number in range(repeat):
        places = [(contestant, count) for count in threads for contestant in contestants]
        for contestant, count in places[::-1] if number % 2 else places:
            who = (contestant.key, count)
            turn = None
            if who not in failed:
                say(f"round {number + 1} of {repeat}: {' '.join(contestant.key)}, {count} threads")
                try:
                    turn = _turn(contestant, count, count == max(threads), n_vocab, ceilings, work)
                except EngineError as error:
                    failed.add(who)
                    contestant.errors.append(f"{count} threads: {error}")
                    say(f"failed: {error}")
            contestant.turns.setdefault(count, []).append(turn)


def _turn(contestant: Contestant, threads: int, at_most_threads: bool, n_vocab: int, ceilings, work) -> Turn:
    engine = contestant.engine
    log = environments.folder_of(engine, work) / "worker.log"
    python = environments.python_of(engine, work)
    with WorkerProcess(engine, python, contestant.folder, contestant.quant, threads, log) as worker:
        turn = take_turn(worker, threads, n_vocab, ceilings)
        if contestant.key == goals.KIT:
            turn.own_goals = take_own_goals(worker, at_most_threads)
        return turn


def by_threads(contestants: list, threads: list, repeat: int) -> dict:
    """threads → [goals.Round], for the judge."""
    rounds = {}
    for count in threads:
        rounds[count] = []
        for number in range(repeat):
            turns = {contestant.key: contestant.turns[count][number] for contestant in contestants}
            rounds[count].append(goals.Round({key: turn for key, turn in turns.items() if turn is not None}))
    return rounds
