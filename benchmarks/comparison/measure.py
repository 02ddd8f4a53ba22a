"""One turn of one engine in a fresh process: load, prefill, decode, memory."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, field

from .figures import Disturbed, as_calm_as
from .machine_state import Ceilings, ForeignLoad
from .worker_process import WorkerProcess

PREFILL = {32: 3, 128: 2, 512: 2}  # prompt tokens: runs
FIRST_PROMPT = 128
DECODE = {32: 4, 1024: 4}  # tokens in the context: windows
WINDOW = 8  # tokens
LOAD_SECONDS = 600.0
RUN_SECONDS = 600.0
STEP_SECONDS = 150.0  # a step that an engine would need longer for is left out
OWN_GOAL_SECONDS = 900.0
_OWN_GOALS = {
    "bandwidth": {"prompt": 32, "turns": 6},
    "arithmetic": {"prompt": 512, "turns": 2},
}
_OWN_GOALS_AT_MOST_THREADS = {
    "many_sessions": {"counts": [4, 8], "turns": 4},
    "long_context": {"lengths": [2000, 8000], "turns": 4},
    "speculation": {"new_tokens": 64, "turns": 2},
}


@dataclass
class Turn:
    """Figures of one turn; a speed is the median over its calm windows, else over all and Disturbed."""

    prefill_tps: dict = field(default_factory=dict)  # by prompt tokens
    decode_tps: dict = field(default_factory=dict)  # by tokens in the context
    bandwidth_share: float | None = None
    load_s: float | None = None
    first_token_s: float | None = None
    memory: dict = field(default_factory=dict)
    versions: dict = field(default_factory=dict)
    bytes_per_token: int | None = None
    read_bandwidth: float | None = None
    own_goals: dict = field(default_factory=dict)
    windows: int = 0
    disturbed: int = 0


def random_ids(n: int, n_vocab: int) -> list:
    """The same prompt for every engine."""
    generator = random.Random(n_vocab)
    return [generator.randrange(n_vocab) for _ in range(n)]


def take_turn(worker: WorkerProcess, threads: int, n_vocab: int, ceilings: Ceilings) -> Turn:
    """Measures the engine of a worker that has just been started. EngineError if it fails."""
    turn = Turn()
    ids = random_ids(max(DECODE) + 1, n_vocab)
    before = ceilings.read_bandwidth(threads)
    with ForeignLoad(worker.pid) as others:
        loaded = worker.ask(LOAD_SECONDS, "load")
        first = worker.ask(RUN_SECONDS, "run", ids=ids[:FIRST_PROMPT], n_new=2)
        turn.load_s = loaded["seconds"]
        turn.first_token_s = loaded["seconds"] + first["seconds"][0]
        seconds_per_token = first["seconds"][0] / FIRST_PROMPT
        for n, repeats in PREFILL.items():
            if n * seconds_per_token > STEP_SECONDS:
                continue
            runs = [worker.ask(RUN_SECONDS, "run", ids=ids[:n], n_new=1) for _ in range(repeats)]
            samples = [(n, run["began"], run["seconds"][0]) for run in runs]
            turn.prefill_tps[n] = _median(turn, samples, others)
            seconds_per_token = min(run["seconds"][0] for run in runs) / n
        for n, windows in DECODE.items():
            n_new = 1 + windows * WINDOW
            if n * seconds_per_token + n_new * first["seconds"][1] > STEP_SECONDS:
                continue
            if n == min(DECODE):
                before = max(before, ceilings.read_bandwidth(threads))
            run = worker.ask(RUN_SECONDS, "run", ids=ids[:n], n_new=n_new)
            turn.decode_tps[n] = _median(turn, _decode_windows(run), others)
            if n == min(DECODE):
                turn.read_bandwidth = max(before, ceilings.read_bandwidth(threads))
    about = worker.ask(RUN_SECONDS, "about")
    turn.memory, turn.versions = about["memory"], about["versions"]
    turn.bytes_per_token = about["bytes_per_token"]
    if turn.bytes_per_token and turn.read_bandwidth:
        speed = turn.decode_tps[min(DECODE)]
        share = speed * turn.bytes_per_token / turn.read_bandwidth
        turn.bandwidth_share = as_calm_as(share, speed)
    return turn


def take_own_goals(worker: WorkerProcess, at_most_threads: bool) -> dict:
    """Samples of this kit's goals that have no peer; the long ones only at the highest thread count."""
    goals = {**_OWN_GOALS, **(_OWN_GOALS_AT_MOST_THREADS if at_most_threads else {})}
    found = {}
    with ForeignLoad(worker.pid) as others:
        for name, options in goals.items():
            began = time.perf_counter()
            samples = worker.ask(OWN_GOAL_SECONDS, "own_goal", name=name, **options)["samples"]
            found[name] = {**samples, "disturbed": others.disturbed(began, time.perf_counter())}
    return found


def _decode_windows(run: dict) -> list:
    """(tokens, when it began, seconds) of each window after the first token."""
    windows, seconds = [], run["seconds"]
    for start in range(1, len(seconds), WINDOW):
        part = seconds[start : start + WINDOW]
        windows.append((len(part), run["began"] + sum(seconds[:start]), sum(part)))
    return windows


def _median(turn: Turn, samples: list, others: ForeignLoad) -> float:
    """Tokens per second; counts the samples, and those in which others took processor time."""
    calm = [sample for sample in samples if not others.disturbed(sample[1], sample[1] + sample[2])]
    turn.windows += len(samples)
    turn.disturbed += len(samples) - len(calm)
    median = statistics.median(tokens / seconds for tokens, _, seconds in calm or samples)
    return median if calm else Disturbed(median)
