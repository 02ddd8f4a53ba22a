"""`edge-kit bench`: speed of prefill and decode, as a share of what the machine can give; kept and compared.

The token checksum tells whether two runs computed the same.
"""

from __future__ import annotations

import json
import platform
import statistics
import time

from lite_runtime.errors import ContextFullError, UsageError

from . import bench_report, generation

HELP = "measure speed and the share of the memory bandwidth; keep it, compare with it"

_DEFAULTS = {"prompt_tokens": 128, "new_tokens": 64, "threads": None, "kv_dtype": "f16"}
_JUDGED_RUNS = 5  # default of --repeat with --save and --compare
_ATTEMPTS = 3  # a regression must show in so many measurements
_DECODE_FIGURES = {"decode_tps": "window_tps", "bandwidth_share": "window_shares"}
# Figures that the report gives the median and the range of.
_FIGURES = (
    "prefill_tps",
    "prefill_peak_share",
    "multiply_peak_gops",
    "decode_tps",
    "read_bandwidth_gbs",
    "bandwidth_share",
    "load_s",
)


def add_arguments(parser) -> None:
    generation.add_model_arguments(parser)
    parser.set_defaults(kv_dtype=None)  # what is not given may come from a baseline
    parser.add_argument("--prompt-tokens", type=generation.positive, metavar="N", help="default: 128")
    parser.add_argument("--new-tokens", type=generation.positive, metavar="N", help="default: 64")
    parser.add_argument(
        "--repeat",
        type=generation.positive,
        metavar="N",
        help=f"whole runs; default: 1, with --save and --compare {_JUDGED_RUNS}",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--save", metavar="FILE", help="keep the figures as a baseline")
    kept.add_argument(
        "--compare",
        metavar="FILE",
        help="judge the figures against a baseline, with its settings; exit status 1 for a regression",
    )


def run(args) -> int:
    from edge_kit import baseline

    old = baseline.load(args.compare) if args.compare else None
    if args.save:
        baseline.require_writable(args.save, "--save")
    _settle(args, old, baseline.LEAST_RUNS)
    before = _state()
    model, load_seconds, load_disturbed = _timed_load(args)
    with model:
        if args.prompt_tokens + args.new_tokens > model.info.n_ctx:
            raise ContextFullError(
                f"--prompt-tokens {args.prompt_tokens} and --new-tokens {args.new_tokens} need a context of "
                f"{args.prompt_tokens + args.new_tokens}, the limit is {model.info.n_ctx}: set --n-ctx"
            )
        bench = Bench(args, model, load_seconds, load_disturbed)
        if old is not None:
            old.require_same_model(bench.model_signature())
            old.require_same_settings(bench.settings())
            old.require_same_machine(bench.machine_signature())
        bench.measure()
        comparison = None
        if old is not None:
            comparison = _compare(old, bench)
        report = bench.report(before)
    problems = check(bench.runs)
    if problems:
        report["problems"] = problems
    if comparison is not None:
        report["comparison"] = comparison
    if args.save:
        trusted = not problems or all(run["decode_disturbed"] for run in bench.runs)
        if trusted and len({run["token_checksum"] for run in bench.runs}) == 1:
            baseline.save(args.save, bench.baseline())
            report["saved"] = args.save
    print(json.dumps(report, indent=2) if args.json else bench_report.text(report))
    if comparison is not None:
        return 1 if comparison["regressions"] else 0
    if args.save:
        return 0 if "saved" in report else 1
    return 1 if problems else 0


def _settle(args, old, least_runs: int) -> None:
    """Fills in what was not given: from the baseline, else the defaults."""
    source = old.settings if old is not None else _DEFAULTS
    for name in _DEFAULTS:
        if getattr(args, name) is None:
            setattr(args, name, source[name])
    judged = args.save or args.compare
    if args.repeat is None:
        args.repeat = _JUDGED_RUNS if judged else 1
    if judged and args.repeat < least_runs:
        raise UsageError(
            f"--repeat {args.repeat}: --save and --compare need at least {least_runs} runs for a spread"
        )


def _timed_load(args) -> tuple:
    from edge_kit import speed

    started = time.perf_counter()
    model, disturbed = speed.watched(lambda: generation.load_model(args))
    return model, time.perf_counter() - started, disturbed


class Bench:
    """Repeated runs on one model, and what is reported of them."""

    def __init__(self, args, model, load_seconds: float, load_disturbed: bool):
        from edge_kit import speed
        from lite_runtime import machine

        self._args, self._model = args, model
        self._rss_after_load = machine.rss()
        self._multiplications = speed.warm_up(model, args.prompt_tokens)
        self._loads = [(load_seconds, load_disturbed)]
        self.runs = []

    def measure(self) -> None:
        """Fills `runs` anew."""
        from edge_kit import speed
        from lite_runtime import machine

        self.runs = []
        for _ in range(self._args.repeat):
            if not self._loads:
                again, seconds, disturbed = _timed_load(self._args)
                again.close()
                self._loads.append((seconds, disturbed))
            run = speed.measure(
                self._model, self._args.prompt_tokens, self._args.new_tokens, self._multiplications
            )
            run["load_s"], run["load_disturbed"] = self._loads.pop()
            run["peak_rss_bytes"] = machine.peak_rss()
            self.runs.append(run)

    def model_signature(self) -> dict:
        manifest, info = self._model.manifest, self._model.info
        return {
            "name": str(manifest.get("name", "unknown")),
            "digest": str(manifest.get("model_digest", "unknown")),
            "file_bytes": info.file_bytes,
        }

    def settings(self) -> dict:
        return {
            "prompt_tokens": self._args.prompt_tokens,
            "new_tokens": self._args.new_tokens,
            "threads": self._model.info.n_threads,
            "kv_dtype": self._args.kv_dtype,
        }

    def machine_signature(self) -> dict:
        from lite_runtime import machine

        return {"cpu": machine.cpu_model(), "cores": machine.usable_cores()}

    def kernel(self) -> str:
        return self._model.info.isa

    def baseline(self):
        import edge_kit
        from edge_kit.baseline import Baseline

        return Baseline(
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            model=self.model_signature(),
            settings=self.settings(),
            machine=self.machine_signature(),
            kernel=self.kernel(),
            versions={"edge-kit": edge_kit.__version__, "python": platform.python_version()},
            token_checksum=self.runs[0]["token_checksum"],
            runs=self.runs,
        )

    def report(self, before: dict) -> dict:
        info, runs = self._model.info, self.runs
        pooled = {
            name: [value for run in runs for value in run[_DECODE_FIGURES[name]]]
            if name in _DECODE_FIGURES
            else [run[name] for run in runs]
            for name in _FIGURES
        }
        return {
            **{name: statistics.median(run[name] for run in runs) for name in _FIGURES},
            "ranges": {name: [min(values), max(values)] for name, values in pooled.items()},
            "windows": sum(run["windows"] for run in runs),
            "disturbed_windows": sum(run["disturbed_windows"] for run in runs),
            "runs": len(runs),
            "disturbed_runs": sum(run["decode_disturbed"] for run in runs),
            "rss_after_load_bytes": self._rss_after_load,
            "rss_decode_bytes": runs[-1]["rss_bytes"],
            "peak_rss_bytes": runs[-1]["peak_rss_bytes"],
            "kernel": info.isa,
            "context": self._args.prompt_tokens + self._args.new_tokens,
            **self.settings(),
            "parameter_bytes_per_token": info.parameter_bytes_per_token,
            "file_bytes": info.file_bytes,
            "token_checksum": runs[0]["token_checksum"],
            "cpu": self.machine_signature()["cpu"],
            "before": before,
            "after": _state(),
        }


def _compare(old, bench) -> dict:
    """Judges the runs; what looks worse is measured again, and is a regression if it always does."""
    from dataclasses import asdict

    from edge_kit import baseline

    regressions, attempts = set(baseline.FIGURES), 0
    while attempts < _ATTEMPTS:
        if attempts > 0:
            bench.measure()
        for run in bench.runs:
            old.require_same_tokens(run["token_checksum"])
        attempts += 1
        verdicts = baseline.judge_all(old.runs, bench.runs)
        regressions &= {verdict.figure for verdict in verdicts if verdict.verdict == "worse"}
        if not regressions:
            break
    return {
        "baseline": {"created": old.created, "kernel": old.kernel, "versions": old.versions},
        "kernel": bench.kernel(),
        "attempts": attempts,
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "regressions": sorted(regressions),
    }


def check(runs: list) -> list:
    """What is wrong with the figures themselves."""
    problems = []
    share = max(run["bandwidth_share"] for run in runs)
    if share > 1:
        problems.append(
            f"the bandwidth share is {share:.3f}, and nothing reads faster than the bus: the bench is wrong, "
            "or something else held the machine while it measured; run it again on an idle machine"
        )
    if len({run["token_checksum"] for run in runs}) > 1:
        problems.append(
            "the token checksum differs between repeats: the runtime is not deterministic, report it"
        )
    return problems


def _state() -> dict:
    from lite_runtime import device

    return {"clock_mhz": device.clock_mhz(), "temperature_c": device.temperature_c()}
