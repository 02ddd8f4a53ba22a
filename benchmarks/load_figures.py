"""What the answers of a run amount to."""

from __future__ import annotations

import collections
import zlib

import numpy as np

PERCENTILES = (50, 95, 99)


def percentiles(seconds: list) -> dict | None:
    """{"mean", "p50", "p95", "p99"} in milliseconds, linear between the nearest two; None of nothing."""
    if not seconds:
        return None
    values = np.percentile(seconds, PERCENTILES)
    found = {f"p{p}": 1e3 * float(value) for p, value in zip(PERCENTILES, values)}
    return {"mean": 1e3 * float(np.mean(seconds)), **found}


def slope(points: list) -> float | None:
    """Of [(x, y)]: the median of the slopes between any two of them, after Theil and Sen, which a few points
    aside do not tilt; None without two different x."""
    x, y = np.array(points, np.float64).reshape(-1, 2).T
    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    apart = run != 0
    return float(np.median((y[second] - y[first])[apart] / run[apart])) if apart.any() else None


def figures(answers: list, prompt_tokens: int, new_tokens: int) -> dict:
    """Of Answers. Rates are over the time from the first start to the last end."""
    whole = [answer for answer in answers if answer.error is None]
    seconds = max(answer.ended for answer in answers) - min(answer.due for answer in answers)
    n_new = sum(answer.new_tokens for answer in whole)
    timed = [answer for answer in whole if answer.times]
    gaps, means = [], []
    for answer in timed:
        gaps += np.diff(answer.times).tolist()
        if answer.new_tokens > 1:
            means.append((answer.times[-1] - answer.times[0]) / (answer.new_tokens - 1))
    by_index = sorted(whole, key=lambda answer: answer.index)
    sums = {answer.index: f"{answer.checksum:08x}" for answer in by_index}
    return {
        "requests": len(answers),
        "answered": len(whole),
        "errors": dict(collections.Counter(answer.error for answer in answers if answer.error is not None)),
        "wrong_prompt_length": sum(answer.prompt_tokens != prompt_tokens for answer in whole),
        "wrong_answer_length": sum(answer.new_tokens != new_tokens for answer in whole),
        "seconds": seconds,
        "requests_per_s": len(whole) / seconds,
        "tokens_per_s": n_new / seconds,
        "new_tokens": n_new,
        "cached_tokens": sum(answer.cached_tokens for answer in whole),
        "events_per_token": sum(len(answer.times) for answer in whole) / n_new if n_new else None,
        "first_token_ms": percentiles([answer.times[0] - answer.due for answer in timed]),
        "gap_ms": percentiles(gaps),
        "token_ms": percentiles(means),
        "request_ms": percentiles([answer.ended - answer.due for answer in whole]),
        "checksum": f"{zlib.crc32(' '.join(sums.values()).encode()):08x}",
        "checksums": sums,
    }


def table(found: dict) -> str:
    """Markdown of `figures`."""
    errors = ", ".join(f"{kind}: {n}" for kind, n in sorted(found["errors"].items())) or "none"
    lines = [
        f"{found['answered']} of {found['requests']} requests answered in {found['seconds']:.1f} s: "
        f"{found['requests_per_s']:.2f} requests/s, {found['tokens_per_s']:.1f} tokens/s. Errors: {errors}.",
        f"Texts: checksum {found['checksum']}; prompts of another length: {found['wrong_prompt_length']}, "
        f"answers: {found['wrong_answer_length']}; prompt tokens from a cache: {found['cached_tokens']}.",
        "",
        "| ms | mean | p50 | p95 | p99 |",
        "|---|---|---|---|---|",
    ]
    for name, title in (
        ("first_token_ms", "first token"),
        ("gap_ms", "between two events with text"),
        ("token_ms", "per token, mean of a request"),
        ("request_ms", "whole request"),
    ):
        row = found[name]
        cells = [f"{row[key]:.1f}" for key in ("mean", "p50", "p95", "p99")] if row else ["–"] * 4
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
