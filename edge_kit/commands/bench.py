"""`edge-kit bench`: speed of prefill and decode, as a share of what the memory bus can give.

Decode runs in windows, and the read bandwidth is measured between them with the same threads, so that both
see the machine in the same state. Greedy, from fixed pseudo-random prompt ids: the token checksum tells
whether two runs computed the same.
"""

from __future__ import annotations

import array
import json
import statistics
import time
import zlib

from lite_runtime.errors import ContextFullError

from . import generation

HELP = "measure speed and the share of the memory bandwidth"

_WINDOWS = 4
# Figures that --repeat gives the median and the range of.
_FIGURES = ("prefill_tps", "decode_tps", "read_bandwidth_gbs", "bandwidth_share")


def add_arguments(parser) -> None:
    generation.add_model_arguments(parser)
    parser.add_argument(
        "--prompt-tokens", type=generation.positive, default=128, metavar="N", help="default: 128"
    )
    parser.add_argument("--new-tokens", type=generation.positive, default=64, metavar="N", help="default: 64")
    parser.add_argument(
        "--repeat", type=generation.positive, default=1, metavar="N", help="whole runs; default: 1"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(args) -> int:
    from lite_runtime import machine

    before = _state(machine)
    started = time.perf_counter()
    with generation.load_model(args) as model:
        load_seconds = time.perf_counter() - started
        rss_after_load = machine.rss()
        if args.prompt_tokens + args.new_tokens > model.info.n_ctx:
            raise ContextFullError(
                f"--prompt-tokens {args.prompt_tokens} and --new-tokens {args.new_tokens} need a context of "
                f"{args.prompt_tokens + args.new_tokens}, the limit is {model.info.n_ctx}: set --n-ctx"
            )
        _warm_up(model)
        runs = [measure(model, args.prompt_tokens, args.new_tokens) for _ in range(args.repeat)]
        figures = {name: statistics.median(run[name] for run in runs) for name in _FIGURES}
        report = {
            **figures,
            "load_s": load_seconds,
            "rss_after_load_bytes": rss_after_load,
            "rss_decode_bytes": runs[-1]["rss_bytes"],
            "peak_rss_bytes": machine.peak_rss(),
            "kernel": model.info.isa,
            "threads": model.info.n_threads,
            "context": args.prompt_tokens + args.new_tokens,
            "prompt_tokens": args.prompt_tokens,
            "new_tokens": args.new_tokens,
            "parameter_bytes_per_token": model.info.parameter_bytes_per_token,
            "file_bytes": model.info.file_bytes,
            "token_checksum": runs[0]["token_checksum"],
            "cpu": machine.cpu_model(),
            "before": before,
            "after": _state(machine),
        }
    if args.repeat > 1:
        report["ranges"] = {
            name: [min(run[name] for run in runs), max(run[name] for run in runs)] for name in _FIGURES
        }
    problems = check(runs)
    if problems:
        report["problems"] = problems
    print(json.dumps(report, indent=2) if args.json else _text(report))
    return 1 if problems else 0


def prompt_ids(n: int, n_vocab: int) -> list:
    """Fixed pseudo-random ids (a linear congruential generator), the same on every machine."""
    state, ids = 1, []
    for _ in range(n):
        state = (state * 1103515245 + 12345) % 2**31
        ids.append((state >> 8) % n_vocab)
    return ids


def measure(model, n_prompt: int, n_new: int) -> dict:
    """One run in a session of its own. Tokens per second, GB/s; the share is the median over the windows."""
    from lite_runtime import machine
    from lite_runtime.generate import make_sampling, sample

    greedy = make_sampling({}, 0, None, None, None, None, seed=0)
    no_history = array.array("i")
    tokens, windows = array.array("i"), []
    with model.session() as session:
        started = time.perf_counter()
        (logits,) = model.forward([(session, prompt_ids(n_prompt, model.info.n_vocab), "last")])
        prefill_seconds = time.perf_counter() - started
        bandwidths = [model.read_bandwidth()]
        for count in window_sizes(n_new):
            started = time.perf_counter()
            for _ in range(count):
                tokens.append(sample(logits, greedy, no_history, len(session)))
                (logits,) = model.forward([(session, tokens[-1:], "last")])
            windows.append(count / (time.perf_counter() - started))
            bandwidths.append(model.read_bandwidth())
        rss = machine.rss()
    # A window is held against the better of the two measurements around it.
    ceilings = [max(pair) for pair in zip(bandwidths, bandwidths[1:])]
    shares = [tps * model.info.parameter_bytes_per_token / ceiling for tps, ceiling in zip(windows, ceilings)]
    return {
        "prefill_tps": n_prompt / prefill_seconds,
        "decode_tps": statistics.median(windows),
        "read_bandwidth_gbs": statistics.median(ceilings) / 1e9,
        "bandwidth_share": statistics.median(shares),
        "rss_bytes": rss,
        "token_checksum": f"{zlib.crc32(tokens.tobytes()):08x}",
    }


def window_sizes(n: int) -> list:
    """`n` tokens in up to four windows of nearly equal size."""
    windows = min(_WINDOWS, n)
    return [n // windows + (i < n % windows) for i in range(windows)]


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


def _warm_up(model) -> None:
    """Brings the weights into memory and the clock up."""
    with model.session() as session:
        for _ in range(2):
            model.forward([(session, [0], "last")])


def _state(machine) -> dict:
    return {"clock_mhz": machine.clock_mhz(), "temperature_c": machine.temperature_c()}


def _gigabytes(nbytes) -> str:
    return "unknown" if nbytes is None else f"{nbytes / 1e9:.3f} GB"


def _text(report: dict) -> str:
    lines = [
        f"prefill    {report['prefill_tps']:.2f} tokens/s ({report['prompt_tokens']} tokens)",
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
    for name, (low, high) in report.get("ranges", {}).items():
        lines.append(f"range      {name} {low:.3f} to {high:.3f}")
    return "\n".join(lines + [f"problem    {problem}" for problem in report.get("problems", [])])
