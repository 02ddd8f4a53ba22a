"""The arithmetic of `stages.py`'s figures, and its two tables as Markdown."""

from __future__ import annotations

from benchmarks.comparison.figures import spread
from benchmarks.stages_request import STAGES

LEDGER = (*STAGES, "first_token", "total")


def summarize_requests(answers: list) -> dict:
    """The answers of the children of `stages_request`, one per repetition, as medians and ranges.

    rows: cold and warm, first and second turn; milliseconds by stage, and each stage's share of the sum of
    the stages' medians.
    """
    rows = []
    for state in ("cold", "warm"):
        for turn in range(len(answers[0][state])):
            turns = [answer[state][turn] for answer in answers]
            ms = {name: spread([figures["ms"][name] for figures in turns]) for name in LEDGER}
            whole = sum(ms[stage]["median"] for stage in STAGES)
            rows.append(
                {
                    "state": state,
                    "turn": turn + 1,
                    "ms": ms,
                    "share": {stage: ms[stage]["median"] / whole for stage in STAGES},
                    "prompt_tokens": turns[0]["prompt_tokens"],
                    "reused_tokens": turns[0]["reused_tokens"],
                }
            )
    opening = {name: spread([answer[name] for answer in answers]) for name in ("import_ms", "open_ms")}
    return {**opening, "rows": rows}


def summarize_steps(answers: list, n_prompt: int) -> list:
    """The answers of the children of `stages_steps`, with speeds, gains and the token check.

    gain: decode speed over that of the step before it, of those that ran; gain_over_first: over the first's.
    """
    rows, before, first = [], None, None
    for answer in answers:
        row = {name: answer[name] for name in ("step", "name", "threads")}
        rows.append(row)
        if "skipped" in answer:
            row["skipped"] = answer["skipped"]
            continue
        runs = answer["runs"]
        row["engine"] = answer["engine"]
        row["prefill_tps"] = spread([n_prompt / run["seconds"][0] for run in runs])
        row["decode_tps"] = spread([(len(run["seconds"]) - 1) / sum(run["seconds"][1:]) for run in runs])
        first = first or (row, runs[0])
        row["gain"] = _ratio(row, before)
        row["gain_over_first"] = _ratio(row, first[0])
        row["check"] = compare_tokens(first[1], runs[0])
        before = row
    return rows


def _ratio(row: dict, other):
    return None if other is None else row["decode_tps"]["median"] / other["decode_tps"]["median"]


def compare_tokens(first: dict, run: dict) -> dict:
    """How many greedy tokens agree from the start, of those that both have.

    margin: where they part, by how many logits the first step preferred its own token to the runner-up. A
    small one is a near tie, which any rounding decides; None where they do not part.
    """
    n = min(len(first["tokens"]), len(run["tokens"]))
    agree = next((i for i in range(n) if first["tokens"][i] != run["tokens"][i]), n)
    return {"agree": agree, "of": n, "margin": first["margins"][agree] if agree < n else None}


def markdown(report: dict) -> str:
    """Both tables, each with what it was measured on."""
    request = report["request"]
    lines = [
        f"One request to {report['model']} ({report['file_bytes'] / 1e9:.3f} GB) on {report['cpu']}, "
        f"{report['kernel']}, {report['threads']} threads, {report['new_tokens']} new tokens; "
        f"medians of {report['repeat']}. Cold: the first conversation of a fresh process (file in the page "
        f"cache), after {request['import_ms']['median']:.0f} ms of imports and "
        f"{request['open_ms']['median']:.1f} ms to open the file.",
        "",
        "| | parse | encode | model | text | first token | total | prompt tokens |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in request["rows"]:
        cells = [f"{row['ms'][stage]['median']:.2f} ms, {row['share'][stage]:.1%}" for stage in STAGES]
        cells += [f"{row['ms'][name]['median']:.1f} ms" for name in ("first_token", "total")]
        cells.append(f"{row['prompt_tokens']}, {row['reused_tokens']} from the cache")
        lines.append(f"| {row['state']}, turn {row['turn']} | {' | '.join(cells)} |")
    widened = " fp32 has the file's weights, widened." if report["model"].endswith(".nb") else ""
    lines += ["", f"The first turn on each step, tokens/s (median, range).{widened}", ""]
    lines += [
        "| step | threads | prefill | decode | decode gained | over the first | tokens as the first's |"
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    lines += [_step_line(row) for row in report["steps"]]
    return "\n".join(lines) + "\n"


def _step_line(row: dict) -> str:
    if "skipped" in row:
        return f"| {row['name']} | {row['threads']} | skipped: {' '.join(row['skipped'].split())} | | | | |"
    check = row["check"]
    agreement = f"{check['agree']} of {check['of']}"
    if check["margin"] is not None:
        agreement += f", then a margin of {check['margin']:.3f} logits"
    name = row["name"] if row["step"] not in ("best", "threads") else f"{row['name']} ({row['engine']})"
    speeds = [
        f"{speed['median']:.2f} ({speed['min']:.2f} to {speed['max']:.2f})"
        for speed in (row["prefill_tps"], row["decode_tps"])
    ]
    gains = ["" if gain is None else f"× {gain:.2f}" for gain in (row["gain"], row["gain_over_first"])]
    return f"| {name} | {row['threads']} | {' | '.join(speeds)} | {' | '.join(gains)} | {agreement} |"
