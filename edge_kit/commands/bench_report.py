"""What `edge-kit bench` prints of its figures."""

from __future__ import annotations

_RULE = (
    "rule       worse: by more than both spreads (half the range over the median) together, and by more than "
    "the least change that counts; where others disturbed the runs, by half"
)


def text(report: dict) -> str:
    """The figures of one `bench`, line by line."""
    lines = [
        f"prefill    {report['prefill_tps']:.2f} tokens/s ({report['prompt_tokens']} tokens), "
        f"{report['prefill_peak_share']:.1%} of {report['multiply_peak_gops']:.0f} int8 GOP/s",
        f"decode     {report['decode_tps']:.2f} tokens/s ({report['new_tokens']} tokens)",
        f"bandwidth  {report['bandwidth_share']:.1%} of {report['read_bandwidth_gbs']:.2f} GB/s",
        f"load       {report['load_s']:.3f} s, peak memory {report['peak_rss_bytes'] / 1e9:.2f} GB",
        f"resident   {_gigabytes(report['rss_after_load_bytes'])} after loading, "
        f"{_gigabytes(report['rss_decode_bytes'])} in decode, file {_gigabytes(report['file_bytes'])}",
        f"kernel     {report['kernel']}, {report['threads']} threads, {report['cpu']}",
        f"checksum   {report['token_checksum']}",
    ]
    for when in ("before", "after"):
        clock, degrees = report[when]["clock_mhz"], report[when]["temperature_c"]
        lines.append(
            f"{when:10} {'clock not readable' if clock is None else f'{clock:.0f} MHz'}, "
            f"{'temperature not readable' if degrees is None else f'{degrees:.1f} °C'}"
        )
    for name, (low, high) in report["ranges"].items():
        if low < high:
            lines.append(f"range      {name} {low:.3f} to {high:.3f}")
    if report["disturbed_windows"]:
        lines.append(_disturbed_line(report))
    if "comparison" in report:
        lines += _comparison_lines(report["comparison"])
    lines += [f"problem    {problem}" for problem in report.get("problems", [])]
    if "saved" in report:
        lines.append(f"saved      {report['saved']}")
    return "\n".join(lines)


def _disturbed_line(report: dict) -> str:
    line = (
        f"disturbed  {report['disturbed_windows']} of {report['windows']} decode windows: other processes or "
        "the host took processor time; "
    )
    if report["disturbed_runs"] == 0:
        return line + "they are left out"
    if report["disturbed_runs"] == report["runs"]:
        return line + "no run had another, so they count: repeat it on an idle machine"
    return line + f"left out but in {report['disturbed_runs']} of {report['runs']} runs, which had no other"


def _comparison_lines(comparison: dict) -> list:
    from edge_kit.baseline import FIGURES

    old = comparison["baseline"]
    versions = ", ".join(f"{name} {version}" for name, version in old["versions"].items())
    lines = ["", f"against the baseline of {old['created']} ({versions}, kernel {old['kernel']})"]
    if old["kernel"] != comparison["kernel"]:
        lines.append(f"warning    this run takes kernel path {comparison['kernel']}, not the baseline's")
    lines.append(f"{'':12} {'baseline':>10} {'now':>10}  {'':20} {'ratio':>6} {'allowed':>9}  verdict")
    for verdict in comparison["verdicts"]:
        figure = FIGURES[verdict["figure"]]
        judgement = "REGRESSION" if verdict["figure"] in comparison["regressions"] else verdict["verdict"]
        if judgement == "worse":
            judgement = f"worse, but not in all of {comparison['attempts']} measurements"
        if verdict["disturbed"]:
            judgement += " (disturbed)"
        lines.append(
            f"{figure.label:12} {verdict['baseline'] * figure.factor:10.2f} "
            f"{verdict['now'] * figure.factor:10.2f}  {figure.unit:20} {verdict['ratio']:6.3f} "
            f"{1 - verdict['allowed']:9.3f}  {judgement}"
        )
    return [*lines, _RULE]


def _gigabytes(nbytes) -> str:
    return "unknown" if nbytes is None else f"{nbytes / 1e9:.3f} GB"
