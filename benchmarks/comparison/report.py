"""The benchmark's result as JSON rows and as Markdown."""

from __future__ import annotations

from .figures import summary

_PLAIN = ("load_s", "first_token_s", "bandwidth_share", "read_bandwidth")
_MEMORY = {"peak_rss_bytes": "VmHWM", "rss_anon_bytes": "RssAnon", "rss_file_bytes": "RssFile"}


def rows(contestants: list) -> list:
    """One dict per engine, quantization and thread count; figures as {"median", "min", "max", "values"}."""
    found = []
    for contestant in contestants:
        for threads, all_turns in sorted(contestant.turns.items()):
            turns = [turn for turn in all_turns if turn is not None]
            row = {"engine": contestant.engine.name, "quant": contestant.quant, "threads": threads}
            if not turns:
                error = next(
                    (text for text in contestant.errors if text.startswith(f"{threads} threads")), None
                )
                found.append({**row, "error": error})
                continue
            for kind in ("prefill_tps", "decode_tps"):
                row[kind] = _by_length([getattr(turn, kind) for turn in turns])
            for name in _PLAIN:
                row[name] = _summary([getattr(turn, name) for turn in turns])
            for name, field in _MEMORY.items():
                row[name] = _summary([turn.memory.get(field) for turn in turns])
            row["bytes_per_token"] = turns[-1].bytes_per_token
            row["fidelity"] = contestant.fidelity
            row["windows"] = sum(turn.windows for turn in turns)
            row["disturbed_windows"] = sum(turn.disturbed for turn in turns)
            row["versions"] = turns[-1].versions
            if turns[-1].own_goals:
                row["own_goals"] = [turn.own_goals for turn in turns]
            found.append(row)
    return found


def _by_length(figures: list) -> dict:
    lengths = sorted({length for figure in figures for length in figure})
    return {str(length): _summary([figure.get(length) for figure in figures]) for length in lengths}


def _summary(values: list) -> dict | None:
    values = [value for value in values if value is not None]
    return summary(values) if values else None


def markdown(report: dict) -> str:
    """Two tables, what was left out, and how it was measured."""
    parts = [_engine_table(report["rows"]), _goal_table(report["goals"])]
    if report["skipped"]:
        parts.append("\n".join(f"- {skip['engine']}: {skip['reason']}" for skip in report["skipped"]))
    parts.append(_footnote(report))
    return "\n\n".join(parts) + "\n"


def _engine_table(found: list) -> str:
    head = ["engine", "threads", "prefill 32", "128", "512", "decode", "at 1,024", "of bandwidth", "load s"]
    head += ["first token s", "peak GB", "of it mapped", "top-1"]
    lines = [_line(head), "|" + "---|" * len(head)]
    for row in found:
        name = f"{row['engine']} {row['quant']}"
        if "prefill_tps" not in row:
            lines.append(
                _line([name, str(row["threads"]), f"failed: {row['error']}"] + [""] * (len(head) - 3))
            )
            continue
        cells = [name, str(row["threads"])]
        cells += [spread(row["prefill_tps"].get(length)) for length in ("32", "128", "512")]
        cells += [spread(row["decode_tps"].get(length)) for length in ("32", "1024")]
        cells.append(percent(row["bandwidth_share"]))
        cells += [_number(row[name]) for name in ("load_s", "first_token_s")]
        cells += [_number(row[name], 1e9) for name in ("peak_rss_bytes", "rss_file_bytes")]
        lines.append(_line([*cells, _agreement(row["fidelity"])]))
    return "\n".join(lines)


def _agreement(fidelity: dict) -> str:
    """Top-1 agreement with fp32; where it is low, also that of the same files computed in fp32."""
    if "top1" not in fidelity:
        return ""
    if fidelity["top1"] >= fidelity["threshold"]:
        return f"{fidelity['top1']:.1%}"
    exact = fidelity.get("exact_top1")
    weights = f"; its weights: {exact:.1%}" if exact else ""
    return f"{fidelity['top1']:.1%} (below {fidelity['threshold']:.0%}{weights})"


def _goal_table(lines: list) -> str:
    head = ["goal", "threads", "asked", "measured", ""]
    out = [_line(head), "|" + "---|" * len(head)]
    for line in lines:
        show = percent if line["is_share"] else (lambda figure: f"{spread(figure)} ×")
        asked = f"{line['bound']:.0%}" if line["is_share"] else f"{line['bound']:g} ×"
        if line["threads"] is None:
            out.append(_line([line["goal"], "", asked, "not measured", ""]))
            continue
        short = 1 - line["median"] / line["bound"]
        verdict = "met" if line["met"] else f"missed by {short:.{0 if short >= 0.01 else 1}%}"
        out.append(_line([line["goal"], str(line["threads"]), asked, show(line), verdict]))
    return "\n".join(out)


def _footnote(report: dict) -> str:
    machine = report["machine"]
    rows_with_figures = [row for row in report["rows"] if "windows" in row]
    windows = sum(row["windows"] for row in rows_with_figures)
    disturbed = sum(row["disturbed_windows"] for row in rows_with_figures)
    versions = sorted(
        {f"{name} {value}" for row in rows_with_figures for name, value in _short(row["versions"])}
    )
    return (
        f"{report['model']} on {machine['cpu']}, {machine['cores']} cores, {report['repeat']} interleaved "
        "rounds: tokens/s, median (min to max). First token: loading and a prompt of 128. "
        "Top-1: agreement with fp32 on the demo model. "
        "Speculation: decode with it by decode without; real answers of the demo model are timed by "
        "benchmarks/speculation.py. "
        f"{disturbed} of {windows} windows disturbed by other load were left out where calm ones remained; "
        "* none did. "
        f"{', '.join(versions)}."
    )


def _short(versions: dict) -> list:
    return [(name, value) for name, value in versions.items() if len(str(value)) < 24]


def _line(cells: list) -> str:
    return "| " + " | ".join(cells) + " |"


def spread(figure: dict | None) -> str:
    """As "17.2 (16.9 to 17.8)"; one number where all are equal to three digits."""
    if figure is None:
        return "–"
    median, low, high = (f"{figure[name]:.3g}" for name in ("median", "min", "max"))
    return _mark(median if low == high else f"{median} ({low} to {high})", figure)


def percent(figure: dict | None) -> str:
    """As "91 % (88 to 94)"."""
    if figure is None:
        return "–"
    median, low, high = (f"{100 * figure[name]:.0f}" for name in ("median", "min", "max"))
    return _mark(f"{median} %" if low == high else f"{median} % ({low} to {high})", figure)


def _mark(text: str, figure: dict) -> str:
    return f"{text}*" if figure["disturbed"] else text


def _number(figure: dict | None, unit: float = 1.0) -> str:
    return "–" if figure is None else f"{figure['median'] / unit:.2g}"
