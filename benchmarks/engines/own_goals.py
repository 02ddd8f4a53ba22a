"""What only this kit promises: long contexts, many sequences at once, the shares of bandwidth and int8 peak,
and what speculation gains.

Each takes a loaded model and gives samples, one per turn. Within a turn the cases alternate in short windows,
so that a ratio compares moments that lie close together.
"""

from __future__ import annotations

import contextlib
import time

import numpy as np

WINDOW = 8  # tokens
VNNI = "avx512-vnni"


def long_context(model, lengths: list, turns: int) -> dict:
    """{"0": tokens/s of each turn in a nearly empty context, "2000": …}, for the lengths that fit."""
    fitting = [n for n in lengths if n + (turns + 1) * WINDOW <= model.info.n_ctx]
    with contextlib.ExitStack() as stack:
        sessions = {n: stack.enter_context(_session(model, max(n, WINDOW))) for n in [0, *fitting]}
        return _alternate({n: [session] for n, session in sessions.items()}, model, turns)


def many_sessions(model, counts: list, turns: int) -> dict:
    """{"1": tokens/s of one session, "4": of four in one forward, all four counted, …}, and "rows_equal"."""
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(_session(model, 32 + i)) for i in range(max(counts))]
        if not _rows_equal(model, sessions, stack):
            raise ValueError("a session's logits depend on what else is in the forward: report it")
        samples = _alternate({n: sessions[:n] for n in [1, *counts]}, model, turns)
        return {**samples, "rows_equal": True}


def bandwidth(model, prompt: int, turns: int) -> dict:
    """Share of the read bandwidth of each window of 8 tokens, as `edge-kit bench` defines it.

    Nothing reads faster than the bus: a larger share shows that the bandwidth moved between the two, and that
    window is left out.
    """
    from edge_kit import speed

    measured = speed.measure(model, prompt, turns * WINDOW, speed.warm_up(model, prompt))
    return {"shares": [share for share in measured["window_shares"] if share <= 1]}


def arithmetic(model, prompt: int, turns: int) -> dict:
    """Share of the int8 multiply peak in a prefill of `prompt` tokens, and that peak.

    "vnni_shares" are of the peak of AVX512-VNNI, where the CPU has that.
    """
    import lite_runtime
    from edge_kit import speed
    from lite_runtime import machine

    multiplications = speed.warm_up(model, prompt)
    samples = {"shares": [], "peak_gops": [], "vnni_shares": []}
    has_vnni = VNNI in lite_runtime.available_isas()

    def vnni_gops() -> float:
        return 2 * machine.multiply_peak(model.info.n_threads, VNNI) / 1e9 if has_vnni else 0.0

    for _ in range(turns):
        before = vnni_gops()
        run = speed.measure(model, prompt, 1, multiplications)
        samples["shares"].append(run["prefill_peak_share"])
        samples["peak_gops"].append(run["multiply_peak_gops"])
        if has_vnni:
            reached = run["prefill_peak_share"] * run["multiply_peak_gops"]
            samples["vnni_shares"].append(reached / max(before, vnni_gops()))
    return samples


def speculation(model, new_tokens: int, turns: int) -> dict:
    """Speed with speculation over that without: of each recorded answer that repeats its prompt, replayed,
    and of each turn in which nothing matches."""
    from benchmarks import speculation as benchmark

    greedy = {"temperature": 0}
    repeats = [
        benchmark.compare(
            model, benchmark.chat_ids(model, prompt), new_tokens, greedy, benchmark.recorded_ids(model, name)
        )
        for name, prompt in benchmark.REPEATING.items()
    ]
    no_match = [benchmark.compare(model, *benchmark.unlike_ids(model, new_tokens)) for _ in range(turns)]
    if not all(run["same_tokens"] for run in repeats + no_match):
        raise ValueError("speculation changes what a session generates: report it")
    return {
        "repeats": [run["ratio"] for run in repeats],
        "no_match": [run["ratio"] for run in no_match],
    }


GOALS = {
    "long_context": long_context,
    "many_sessions": many_sessions,
    "bandwidth": bandwidth,
    "arithmetic": arithmetic,
    "speculation": speculation,
}


def _session(model, length: int):
    """A session with `length` random tokens in its cache."""
    session = model.session()
    ids = np.random.default_rng(length).integers(0, model.info.n_vocab, length)
    for start in range(0, length, 512):
        model.forward([(session, ids[start : start + 512], "none")])
    return session


def _alternate(cases: dict, model, turns: int) -> dict:
    """Tokens per second of each case and turn: one window of each case per turn, cut back afterwards."""
    samples = {str(name): [] for name in cases}
    for turn in range(turns + 1):  # the first one warms up
        for name, sessions in cases.items():
            lengths = [len(session) for session in sessions]
            tokens = [0] * len(sessions)
            started = time.perf_counter()
            for _ in range(WINDOW):
                rows = [(session, [token], "last") for session, token in zip(sessions, tokens)]
                tokens = [int(logits.argmax()) for logits in model.forward(rows)]
            rate = WINDOW * len(sessions) / (time.perf_counter() - started)
            for session, length in zip(sessions, lengths):
                session.cut(length)
            if turn:
                samples[str(name)].append(rate)
    return samples


def _rows_equal(model, sessions: list, stack) -> bool:
    """Whether each session's logits in one forward of all equal those of its solo run, bit for bit."""
    forks = [stack.enter_context(session.fork()) for session in sessions]
    together = model.forward([(fork, [7], "last") for fork in forks])
    for session, row in zip(sessions, together):
        with session.fork() as solo:
            (alone,) = model.forward([(solo, [7], "last")])
        if not np.array_equal(row, alone):
            return False
    return True
