"""`edge-kit profile`: time and bytes per kind of step, and the step that bounds the run."""

from __future__ import annotations

import json
from dataclasses import asdict

from lite_runtime.errors import ContextFullError

from . import generation

HELP = "show where the time goes, step by step, and what bounds it"


def add_arguments(parser) -> None:
    generation.add_model_arguments(parser)
    parser.add_argument(
        "--prompt-tokens", type=generation.positive, default=128, metavar="N", help="default: 128"
    )
    parser.add_argument("--new-tokens", type=generation.positive, default=32, metavar="N", help="default: 32")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--png", metavar="FILE", help="draw them; needs matplotlib")


def run(args) -> int:
    from edge_kit import profile, profile_chart
    from edge_kit.baseline import require_writable

    if args.png:  # before anything is measured
        require_writable(args.png, "--png")
        profile_chart.require_matplotlib()
    with generation.load_model(args) as model:
        needed = args.prompt_tokens + max(args.new_tokens, 1)
        if needed > model.info.n_ctx:
            raise ContextFullError(
                f"--prompt-tokens {args.prompt_tokens} and --new-tokens {args.new_tokens} need a context of "
                f"{needed}, the limit is {model.info.n_ctx}: set --n-ctx"
            )
        phases = profile.profile(model, args.prompt_tokens, args.new_tokens)
        name = model.manifest.get("name", args.file)
        title = f"{name}, kernel {model.info.isa}, {model.info.n_threads} threads"
        report = {
            **{phase: asdict(figures) for phase, figures in phases.items()},
            "bound": _bound(phases),
            "kernel": model.info.isa,
            "threads": model.info.n_threads,
        }
    if args.png:
        profile_chart.draw(phases, title, args.png)
    print(json.dumps(report, indent=2) if args.json else _text(phases, title))
    return 0


def _bound(phases: dict) -> dict:
    from edge_kit.profile import bounding

    phase, part = bounding(phases)
    return {"phase": phase, "kind": part.kind, "name": part.name, "by": part.bound}


def _text(phases: dict, title: str) -> str:
    from edge_kit.profile import bounding

    lines = [title]
    for name, phase in phases.items():
        lines += ["", *_phase_lines(name, phase)]
    phase, part = bounding(phases)
    share = part.seconds / sum(figures.seconds for figures in phases.values())
    lines += ["", f"bound      by {part.label} in {phase}, {share:.0%} of the run: {_cause(part)}"]
    return "\n".join(lines)


def _phase_lines(name: str, phase) -> list:
    parts = sum(part.seconds for part in phase.parts)
    lines = [
        f"{name}: {phase.tokens} tokens in {phase.seconds * 1e3:.2f} ms, {phase.tokens / phase.seconds:.2f} "
        f"tokens/s; ceilings {phase.bandwidth / 1e9:.2f} GB/s read, {2 * phase.peak / 1e9:.0f} int8 GOP/s",
        f"  {'step':32} {'calls':>6} {'ms':>9} {'share':>6} {'MB':>9} {'GB/s':>7} {'GOP/s':>7}  ceiling",
    ]
    for part in phase.parts:
        times = f"{part.calls:6} {part.seconds * 1e3:9.3f} {part.seconds / phase.seconds:6.1%}"
        rates = f"{_rate(part.bytes, part)} {_rate(2 * part.operations, part)}"
        line = (
            f"  {part.label:32} {times} {_number(part.bytes / 1e6, 9)} {rates}  {part.nearest_ceiling}"
        )
        lines.append(line.rstrip())
    return [*lines, f"  {'sum':32} {'':6} {parts * 1e3:9.3f} {parts / phase.seconds:6.1%}"]


def _number(value: float, width: int) -> str:
    return f"{value:{width}.2f}" if value else " " * width


def _rate(amount: int, part) -> str:
    return _number(amount / part.seconds / 1e9 if part.seconds > 0 else 0, 7)


def _cause(part) -> str:
    if part.bound == "bandwidth":
        return f"bandwidth (at {part.bandwidth_share:.0%} of what can be read)"
    if part.bound == "arithmetic":
        of_peak = f"int8, at {part.peak_share:.0%} of the peak" if part.peak_share else "fp32"
        return f"arithmetic ({of_peak})"
    nearest = part.nearest_ceiling
    return f"neither bandwidth nor multiplications{f' (at {nearest})' if nearest else ''}"
