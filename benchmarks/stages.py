"""Where the time of one request goes, and what each step from Paddle's dygraph to this runtime gained.

    python benchmarks/stages.py --model demo|FILE.nb|random:NAME [--threads N] [--repeat N] [--json FILE] …

First a conversation of two turns, timed by stage: parse (JSON to checked messages), encode (chat template
and tokenizer), model (prefill, decode, sampling), text (tokens to text). Cold is the first conversation of a
fresh process with the file in the page cache, warm the second one. Then one request on every step, each in a
process of its own, the greedy tokens held against those of the first step. End tokens end no answer here.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__" and not __package__:
    sys.path[0] = str(ROOT)

from benchmarks import stages_report  # noqa: E402
from edge_kit.baseline import require_writable  # noqa: E402
from edge_kit.cli import Parser  # noqa: E402
from edge_kit.commands.generation import positive  # noqa: E402
from lite_runtime import machine  # noqa: E402
from lite_runtime.errors import EdgeKitError, UsageError, did_you_mean  # noqa: E402

CHILD_SECONDS = 1800  # the longest that a child may take


def main(arguments=None) -> int:
    try:
        args = parse_arguments(arguments)
        report = measure(args)
        text = stages_report.markdown(report)
        for path, content in ((args.json, json.dumps(report, indent=2) + "\n"), (args.markdown, text)):
            if path:
                _write(path, content)
    except EdgeKitError as error:
        print(f"stages: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(text, end="")
    return 0


def parse_arguments(arguments=None):
    from benchmarks.stages_steps import STEPS

    parser = Parser(prog="stages.py", description="time of one request by stage, and gain of each step")
    parser.add_argument("--model", required=True, help="demo, a .nb file, random:NAME, or another checkpoint")
    parser.add_argument("--threads", type=positive, metavar="N", help="default: the best for this machine")
    parser.add_argument("--repeat", type=positive, default=3, metavar="N", help="runs of each; default: 3")
    parser.add_argument("--new-tokens", type=positive, default=32, metavar="N", help="default: 32")
    parser.add_argument(
        "--steps", default=",".join(STEPS), metavar="A,B", help=f"of {','.join(STEPS)}; default: all"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables here")
    args = parser.parse_args(arguments)
    if args.new_tokens < 2:
        raise UsageError(f"--new-tokens {args.new_tokens}, expected at least 2: the first is the prefill's")
    args.steps = [name for name in args.steps.split(",") if name]
    for name in args.steps:
        if name not in STEPS:
            hint = did_you_mean(name, STEPS)
            raise UsageError(f"--steps {name}, expected some of {', '.join(STEPS)}{hint}")
    for option in ("json", "markdown"):
        if getattr(args, option):
            require_writable(getattr(args, option), f"--{option}")
    return args


def measure(args) -> dict:
    """All figures; the model is exported into a temporary folder unless it is a file already."""
    with contextlib.ExitStack() as stack:
        path = _model_file(stack, args.model)
        _into_page_cache(path)
        threads = args.threads or _best_threads(path)
        requests = [
            _child("stages_request", [path, threads, args.new_tokens], threads) for _ in range(args.repeat)
        ]
        for answer in requests:
            problem = answer.get("error") or answer.get("skipped")
            if problem:
                raise UsageError(problem)
        return {
            "model": args.model,
            "file_bytes": os.path.getsize(path),
            "cpu": machine.cpu_model(),
            "kernel": requests[0]["kernel"],
            "threads": threads,
            "new_tokens": args.new_tokens,
            "repeat": args.repeat,
            "request": stages_report.summarize_requests(requests),
            "steps": _steps(args, path, threads),
        }


def _model_file(stack, spec: str) -> str:
    if spec.endswith(".nb"):
        if not os.path.isfile(spec):
            raise UsageError(f"--model {spec}: no such file; expected a .nb file, demo or random:NAME")
        return os.path.abspath(spec)
    from edge_kit.export.pipeline import export_model
    from edge_kit.export.progress import Progress

    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="edge-kit-stages-"))
    path = os.path.join(folder, "model.nb")
    export_model(spec, "x86", "int8", "builtin", path, Progress(quiet=True))
    return path


def _into_page_cache(path: str) -> None:
    with open(path, "rb") as file:
        while file.read(1 << 24):
            pass


def _best_threads(path: str) -> int:
    import lite_runtime

    with lite_runtime.load(path, n_ctx=64) as model:
        return model.info.n_threads


def _steps(args, path: str, threads: int) -> list:
    """One row per step: all at one thread, the last at all of them."""
    import lite_runtime
    from benchmarks.stages_request import QUESTIONS, SYSTEM
    from benchmarks.stages_steps import STEPS

    with lite_runtime.load(path, n_ctx=64) as model:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTIONS[0]}]
        request = {"ids": model.text.encode_chat(messages), "new_tokens": args.new_tokens}
    answers = []
    for name in args.steps:
        used = threads if name == "threads" else 1
        print(f"step {name}, {used} threads", file=sys.stderr, flush=True)
        arguments = [name, used, path, _absolute(args.model), args.repeat]
        answer = _child("stages_steps", arguments, used, request)
        answers.append({"step": name, "name": STEPS[name].name, "threads": used, **answer})
    return stages_report.summarize_steps(answers, len(request["ids"]))


def _absolute(spec: str) -> str:
    """A child runs in another folder."""
    return os.path.abspath(spec) if os.path.exists(spec) else spec


def _child(module: str, arguments: list, threads: int, request=None) -> dict:
    """What `python -m benchmarks.MODULE` prints; {"skipped": reason} where it takes too long."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    # Paddle and stock Paddle Lite take their number of threads from the environment.
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads))}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=environment,
            timeout=CHILD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"skipped": f"not done after {CHILD_SECONDS} s"}
    lines = done.stdout.splitlines()
    if lines:
        return json.loads(lines[-1])
    said = done.stderr.strip().splitlines()[-1:] or ["nothing"]
    raise EdgeKitError(f"{' '.join(command)} ended with status {done.returncode}, saying: {said[0]}")


def _write(path: str, content: str) -> None:
    try:
        Path(path).write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
