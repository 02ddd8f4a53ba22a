"""This kit against other engines: one checkpoint, the same prompts, interleaved rounds on this machine.

    python benchmarks/peers.py --install llama-cpp,mnn,ctranslate2
    python benchmarks/peers.py --model random:deepseek-r1-distill-qwen-1.5b --threads 1,2 --repeat 3 \
        --engines edge-kit,llama-cpp,mnn,ctranslate2 --json peers.json --png peers.png --markdown peers.md

`--model` is `demo`, `random:NAME`, a Hugging Face folder, a .gguf or a .nb file, whose INT8 weights, times
their scales and rounded to bf16, the others then get. An engine is NAME (its first quantization), NAME:QUANT
or NAME:all. Each is first held against fp32 on the demo model; one that fails, or is not installed, is named
and left out. A run installs nothing. End of text ends no answer, every engine runs with its best settings,
and prompts are random ids.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":  # instead of this folder
    sys.path[0] = str(ROOT)

from benchmarks.comparison import chart, environments, goals, report  # noqa: E402
from benchmarks.comparison.models import Models, require_disk  # noqa: E402
from benchmarks.comparison.rounds import Contestant, by_threads, run_rounds  # noqa: E402
from benchmarks.engines import base  # noqa: E402
from edge_kit.baseline import require_writable  # noqa: E402
from edge_kit.cli import Parser  # noqa: E402
from edge_kit.commands.generation import positive  # noqa: E402
from edge_kit.profile_chart import require_matplotlib  # noqa: E402
from lite_runtime import machine  # noqa: E402
from lite_runtime.errors import EdgeKitError, UsageError, did_you_mean  # noqa: E402

DEFAULT_ENGINES = "edge-kit,llama-cpp,mnn,ctranslate2"


def main(arguments=None) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended and removed
    try:
        args = parse_arguments(arguments)
        args.work.mkdir(parents=True, exist_ok=True)
        return install(args) if args.install else compare(args)
    except (EdgeKitError, OSError) as error:
        print(f"peers: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def parse_arguments(arguments=None):
    parser = Parser(prog="peers.py", description="this kit's speed against other engines on this machine")
    parser.add_argument("--model", help="demo, random:NAME, a Hugging Face folder, a .gguf or a .nb file")
    parser.add_argument(
        "--engines", default=DEFAULT_ENGINES, metavar="A,B", help=f"default: {DEFAULT_ENGINES}"
    )
    parser.add_argument(
        "--threads", default=str(machine.usable_cores()), metavar="N,N", help="default: all cores"
    )
    parser.add_argument("--repeat", type=positive, default=3, metavar="N", help="rounds; default: 3")
    parser.add_argument("--json", metavar="FILE", help="write the rows and goals here")
    parser.add_argument("--png", metavar="FILE", help="draw them here (needs matplotlib)")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables here; they are printed as well")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "peers", metavar="DIR")
    parser.add_argument(
        "--keep", action="store_true", help="leave the converted models in DIR for the next run"
    )
    parser.add_argument(
        "--install", metavar="A,B", help="make these engines' environments in DIR, nothing else"
    )
    args = parser.parse_args(arguments)
    args.work = args.work.absolute()
    if args.install:
        args.install = [engine for engine, _ in chosen(args.install)]
        return args
    if args.model is None:
        raise UsageError("--model is missing: demo, random:NAME, a checkpoint or a .nb file")
    args.engines = chosen(args.engines)
    args.threads = thread_counts(args.threads)
    for option in ("json", "png", "markdown"):
        if getattr(args, option):
            require_writable(getattr(args, option), f"--{option}")
    if args.png:
        require_matplotlib()
    return args


def chosen(text: str) -> list:
    """[(engine, quant)] of an `--engines` list; UsageError for one that there is not."""
    found = []
    for spec in text.split(","):
        name, _, quant = spec.strip().partition(":")
        name = name.replace(".", "-").replace("_", "-")
        if name not in base.names():
            known = base.names()
            raise UsageError(
                f"engine '{name}', expected one of {', '.join(known)}{did_you_mean(name, known)}"
            )
        engine = base.find(name)
        if quant not in ("", "all", *engine.quants):
            raise UsageError(f"{spec}: {name} can be timed at {', '.join(engine.quants)} or all")
        quants = engine.quants if quant == "all" else [quant or engine.quants[0]]
        found += [(engine, one) for one in quants]
    keys = [(engine.name, quant) for engine, quant in found]
    if len(set(keys)) < len(keys):
        raise UsageError(f"--engines {text}: an engine stands there twice")
    return found


def thread_counts(text: str) -> list:
    """[1, 2] of "1,2"."""
    parts = text.split(",")
    counts = {int(part) for part in parts if part.isdecimal() and len(part) <= 4}
    if len(counts) < len(parts) or not counts or min(counts) < 1 or max(counts) > 1024:
        raise UsageError(f"--threads {text}, expected different counts from 1 to 1024, as 1,2")
    return sorted(counts)


def install(args) -> int:
    failed = False
    for engine in args.install:
        try:
            say(f"installing {engine.name} (log: {environments.folder_of(engine, args.work)}/install.log)")
            environments.install(engine, args.work)
        except base.EngineError as error:
            failed = True
            say(f"failed: {error}")
    return 1 if failed else 0


def compare(args) -> int:
    require_disk(args.work)
    from benchmarks.comparison.fidelity import Fidelity

    models, fidelity = Models(args.model, args.work), Fidelity(args.work)
    try:
        result = measure(args, models, fidelity)
    finally:
        if not args.keep:
            models.remove()
            fidelity.remove()
    text = report.markdown(result)
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n")
    if args.markdown:
        Path(args.markdown).write_text(text)
    if args.png:
        chart.draw(result, args.png)
    print(text, end="")
    return 0 if any("prefill_tps" in row for row in result["rows"]) else 1


def measure(args, models: Models, fidelity) -> dict:
    """Everything that the outputs show."""
    from benchmarks.comparison.machine_state import Ceilings

    started = time.time()
    models.write_hf()
    contestants, skipped = prepare(args, models, fidelity)
    n_vocab, weight_bytes = models.config["vocab_size"], models.weight_bytes()
    models.remove_hf(args.keep)
    ceilings = Ceilings(weight_bytes)
    if contestants:
        run_rounds(contestants, args.threads, args.repeat, n_vocab, ceilings, args.work, say)
    return {
        "model": args.model,
        "repeat": args.repeat,
        "machine": {"cpu": machine.cpu_model(), "cores": os.cpu_count()},
        "int8_peak_gops": {str(count): ceilings.int8_peak_gops(count) for count in args.threads},
        "rows": report.rows(contestants),
        "goals": goals.judge(by_threads(contestants, args.threads, args.repeat)) if contestants else [],
        "skipped": skipped,
        "seconds": time.time() - started,
    }


def prepare(args, models: Models, fidelity) -> tuple:
    """(contestants, [{"engine", "reason"}]): checked against fp32 and converted."""
    contestants, skipped = [], []
    for engine, quant in args.engines:
        reason = environments.skip_reason(engine, args.work)
        if reason is None:
            try:
                say(f"checking and converting {engine.name} {quant}")
                agreement = fidelity.check(engine, quant)
                contestants.append(Contestant(engine, quant, models.convert(engine, quant), agreement))
            except base.EngineError as error:
                reason = str(error)
        if reason is not None:
            skipped.append({"engine": f"{engine.name} {quant}", "reason": reason})
            say(f"left out: {engine.name} {quant}: {reason}")
    return contestants, skipped


def say(text: str) -> None:
    print(f"peers: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
