"""The goals of serving, judged, and the tables of serving.py."""

from __future__ import annotations

from edge_kit.speed import DISTURBED_SHARE

from .comparison.figures import spread

SPEEDUP, TOKEN_P95 = 4.0, 2.5  # many clients against one
LATENCY = 0.78  # of the mean without batching


def together_goals(found: dict) -> list:
    rounds, n = found["rounds"], found["clients"]
    one, many = rounds["one"], rounds["many"]
    goals = [
        _at_least(f"total tokens/s of {n} clients over one", _ratios(many, one, _tokens_per_s), SPEEDUP),
        _at_most(f"per-token p95 of {n} clients over one", _ratios(many, one, _gap_p95), TOKEN_P95),
        _equal_texts("alone and in a batch", found),
    ]
    names = ("total tokens/s over llama-server's", "first-token p95 over llama-server's")
    if found["peer_missing"]:
        reason = f"not measured: {found['peer_missing']}"
        return goals + [{"goal": name, "asked": "–", "met": None, "note": reason} for name in names]
    peer = rounds["llama_many"]
    return [
        *goals,
        _at_least(names[0], _ratios(many, peer, _tokens_per_s), 1.0, strictly=True),
        _at_most(names[1], _ratios(many, peer, _first_p95), 1.0, strictly=True),
    ]


def poisson_goals(found: dict, wanted_busy: tuple) -> list:
    """wanted_busy: the least and the greatest share of time that tells something."""
    rounds = found["rounds"]
    ratios = _ratios(rounds["batched"], rounds["unbatched"], _mean_latency)
    goal = _at_most(f"mean latency with batching over without, {found['rate']:.2f}/s", ratios, LATENCY)
    busy = spread([run["busy"] for run in rounds["unbatched"]])["median"]
    if not wanted_busy[0] <= busy <= wanted_busy[1]:
        goal["met"] = None
        goal["asked"] += f", unbatched {wanted_busy[0]:.0%} to {wanted_busy[1]:.0%} busy (was {busy:.0%})"
    return [goal, _equal_texts("with batching and without", found)]


def _equal_texts(where: str, found: dict) -> dict:
    equal = found["checksums_equal"]
    note = "equal" if equal else "different"
    return {"goal": f"texts {where}", "asked": "equal", "met": equal, "note": note}


def _tokens_per_s(run: dict) -> float:
    return run["tokens_per_s"]


def _gap_p95(run: dict) -> float:
    return run["gap_ms"]["p95"]


def _first_p95(run: dict) -> float:
    return run["first_token_ms"]["p95"]


def _mean_latency(run: dict) -> float:
    return run["request_ms"]["mean"]


def _ratios(above: list, below: list, figure) -> dict:
    """Of each round's pair, which ran next to each other."""
    return spread([figure(a) / figure(b) for a, b in zip(above, below)])


def _at_least(name: str, ratios: dict, asked: float, strictly: bool = False) -> dict:
    met = ratios["median"] > asked if strictly else ratios["median"] >= asked
    return {"goal": name, "asked": f"{'>' if strictly else '≥'} {asked:g}", "found": ratios, "met": met}


def _at_most(name: str, ratios: dict, asked: float, strictly: bool = False) -> dict:
    met = ratios["median"] < asked if strictly else ratios["median"] <= asked
    return {"goal": name, "asked": f"{'<' if strictly else '≤'} {asked:g}", "found": ratios, "met": met}


def markdown(report: dict) -> str:
    """All of it, with what it was measured on."""
    cpu = report["machine"]
    lines = [
        f"{cpu['cpu']}, {cpu['cores']} cores; servers with {report['threads']} threads, this kit's on "
        f"{report['kernel']}; medians of {report['repeat']} rounds, least and most in brackets."
    ]
    if "together" in report:
        lines += _together_lines(report["together"])
    if "poisson" in report:
        lines += _poisson_lines(report["poisson"])
    runs = [run for part in ("together", "poisson") if part in report for run in _runs(report[part])]
    disturbed = sum((run["foreign"] or 0) > DISTURBED_SHARE for run in runs)
    if disturbed:
        lines += [
            "",
            f"In {disturbed} of {len(runs)} runs other programs took more than {DISTURBED_SHARE:.0%} of the "
            "cores: a server whose threads wait for each other by spinning loses more by that than it would "
            "share. Repeat on a calm machine.",
        ]
    lines += ["", "| goal | asked | found | |", "|---|---|---|---|"]
    for goal in report["goals"]:
        found = _cell(goal["found"], 2) if "found" in goal else goal["note"]
        met = {True: "met", False: "not met", None: "not measured"}[goal["met"]]
        lines.append(f"| {goal['goal']} | {goal['asked']} | {found} | {met} |")
    return "\n".join(lines) + "\n"


def _runs(part: dict) -> list:
    return [run for runs in part["rounds"].values() for run in runs]


def _together_lines(found: dict) -> list:
    n = found["clients"]
    lines = [
        "",
        f"Clients that start together, {found['prompt_tokens']} prompt and {found['new_tokens']} new tokens "
        f"each; read bandwidth {_cell(found['read_bandwidth_gbs'], 1)} GB/s.",
        "",
        "| | total tokens/s | first token p95, ms | per token p50, ms | per token p95, ms | load's core "
        "| others' cores |",
        "|---|---|---|---|---|---|---|",
    ]
    titles = {
        "one": "edge-kit, 1 client",
        "many": f"edge-kit, {n} clients",
        "llama_one": "llama-server, 1 client",
        "llama_many": f"llama-server, {n} clients",
    }
    for name, runs in found["rounds"].items():
        figures = (
            (_tokens_per_s, 1),
            (_first_p95, 0),
            (lambda run: run["gap_ms"]["p50"], 1),
            (_gap_p95, 1),
            (lambda run: run["client_cpu_share"], 3),
            (lambda run: run["foreign"] or 0, 2),
        )
        lines.append(_row(titles[name], runs, figures))
    return lines


def _poisson_lines(found: dict) -> list:
    lines = [
        "",
        f"{found['requests']} random arrivals (Poisson) at {found['rate']:.2f}/s, {found['prompt_tokens']} "
        f"prompt and {found['new_tokens']} new tokens.",
        "",
        "| edge-kit | mean latency, ms | p95, ms | first token p95, ms | busy | others' cores |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in found["rounds"].items():
        figures = (
            (_mean_latency, 0),
            (lambda run: run["request_ms"]["p95"], 0),
            (_first_p95, 0),
            (lambda run: run["busy"], 2),
            (lambda run: run["foreign"] or 0, 2),
        )
        lines.append(_row(name, runs, figures))
    return lines


def _row(title: str, runs: list, figures) -> str:
    """figures: (of a run, digits behind the point) of each column."""
    cells = [_cell(spread([figure(run) for run in runs]), digits) for figure, digits in figures]
    return f"| {title} | {' | '.join(cells)} |"


def _cell(values: dict, digits: int) -> str:
    median, least, most = (f"{values[key]:.{digits}f}" for key in ("median", "min", "max"))
    return median if least == most else f"{median} ({least}–{most})"
