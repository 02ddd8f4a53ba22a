"""Speed of a loaded model, held against what the machine can give at that moment.

Other machines and programs share the memory bus and the cores, so a ceiling is measured right before and
after what is timed, with the same threads: the read bandwidth around every few decoded tokens, the int8
multiply rate around the prefill. The better of the two counts. Where others took processor time meanwhile, it
is noted.
"""

from __future__ import annotations

import array
import statistics
import time
import zlib
from dataclasses import dataclass

import lite_runtime
from lite_runtime import machine
from lite_runtime.generate import make_sampling, sample

WINDOW_TOKENS = 8
_GREEDY = make_sampling({}, 0, None, None, None, None, seed=0)
_NO_HISTORY = array.array("i")
DISTURBED_SHARE = 0.05  # of the machine's processor time, taken by others


@dataclass(frozen=True)
class Window:
    """A stretch of decoding between two readings of the bandwidth."""

    tps: float  # tokens per second
    bandwidth: float  # bytes per second, the better reading
    disturbed: bool


def prompt_ids(n: int, n_vocab: int) -> list:
    """Fixed pseudo-random ids (a linear congruential generator), the same on every machine."""
    state, ids = 1, []
    for _ in range(n):
        state = (state * 1103515245 + 12345) % 2**31
        ids.append((state >> 8) % n_vocab)
    return ids


def greedy(logits, position: int) -> int:
    """The token that the runtime draws at temperature 0 from logits [V]."""
    return sample(logits, _GREEDY, _NO_HISTORY, position)


def window_sizes(n: int) -> list:
    """`n` tokens in windows of nearly equal size, at most WINDOW_TOKENS."""
    windows = -(-n // WINDOW_TOKENS)
    return [n // windows + (i < n % windows) for i in range(windows)]


def watched(work) -> tuple:
    """(what work() gives, whether others took processor time meanwhile)."""
    watch = machine.CpuWatch()
    result = work()
    return result, (watch.foreign_share() or 0.0) > DISTURBED_SHARE


def warm_up(model, n_prompt: int) -> int:
    """Brings weights and workspace into memory; gives the multiply-adds of all linears in the prefill."""
    with model.session() as session, model.profile() as take:
        model.forward([(session, prompt_ids(n_prompt, model.info.n_vocab), "last")])
        multiplications = sum(step.operations for step in take() if step.kind == "linear")
        model.forward([(session, [0], "last")])
    return multiplications


def measure(model, n_prompt: int, n_new: int, multiplications: int) -> dict:
    """One run in a session of its own, greedy, from fixed ids. `multiplications`: what `warm_up` gave.

    The token checksum tells whether two runs computed the same.
    """
    info = model.info
    tokens = array.array("i")
    with model.session() as session:

        def prefill() -> tuple:
            started = time.perf_counter()
            (logits,) = model.forward([(session, prompt_ids(n_prompt, info.n_vocab), "last")])
            return logits, time.perf_counter() - started

        def peak() -> float:
            return machine.multiply_peak(info.n_threads, lite_runtime.available_isas()[0])

        def decode(count: int) -> float:
            nonlocal logits
            started = time.perf_counter()
            for _ in range(count):
                tokens.append(greedy(logits, len(session)))
                (logits,) = model.forward([(session, tokens[-1:], "last")])
            return count / (time.perf_counter() - started)

        peaks = [peak()]
        (logits, prefill_seconds), prefill_disturbed = watched(prefill)
        peaks.append(peak())
        windows = []
        before = watched(model.read_bandwidth)
        for count in window_sizes(n_new):
            tps, disturbed = watched(lambda count=count: decode(count))
            after = watched(model.read_bandwidth)
            both_disturbed = before[1] and after[1]
            windows.append(Window(tps, max(before[0], after[0]), disturbed or both_disturbed))
            before = after
        rss = machine.rss()
    kept = [window for window in windows if not window.disturbed] or windows
    shares = [window.tps * info.parameter_bytes_per_token / window.bandwidth for window in kept]
    return {
        "prefill_tps": n_prompt / prefill_seconds,
        "prefill_peak_share": multiplications / prefill_seconds / max(peaks),
        "multiply_peak_gops": 2 * max(peaks) / 1e9,
        "prefill_disturbed": prefill_disturbed,
        "decode_tps": statistics.median(window.tps for window in kept),
        "read_bandwidth_gbs": statistics.median(window.bandwidth for window in kept) / 1e9,
        "bandwidth_share": statistics.median(shares),
        "decode_disturbed": all(window.disturbed for window in windows),
        "window_tps": [window.tps for window in kept],
        "window_shares": shares,
        "windows": len(windows),
        "disturbed_windows": sum(window.disturbed for window in windows),
        "rss_bytes": rss,
        "token_checksum": f"{zlib.crc32(tokens.tobytes()):08x}",
    }
