"""The two serving goals: many clients against one and against llama.cpp's server, and batching against none.

    python benchmarks/serving.py --install
    python benchmarks/serving.py --flagship FLAGSHIP.nb --gguf FLAGSHIP-Q8_0.gguf --demo DEMO.nb --json serving.json

Each figure is of a server started for it, with another prompt for every request; the servers take turns, and
the medians of --repeat rounds count. The load generator runs beside them on the same cores. --install builds
llama-server beside what peers.py installs; without it, or without --gguf (peers.py --keep leaves one in its
work folder), that goal is reported as not measured.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__" and not __package__:
    sys.path[0] = str(ROOT)

from benchmarks import load_servers, serving_report  # noqa: E402
from benchmarks.comparison.figures import spread  # noqa: E402
from benchmarks.comparison.machine_state import Ceilings  # noqa: E402
from benchmarks.engines.base import EngineError  # noqa: E402
from benchmarks.load import Load, requests_in  # noqa: E402
from benchmarks.load_prompts import arrivals  # noqa: E402
from edge_kit.baseline import require_writable  # noqa: E402
from edge_kit.cli import Parser  # noqa: E402
from edge_kit.commands.generation import positive  # noqa: E402
from lite_runtime import machine  # noqa: E402
from lite_runtime.errors import EdgeKitError, UsageError  # noqa: E402

TOGETHER = {"prompt_tokens": 32, "new_tokens": 128}
POISSON = {"prompt_tokens": 64, "new_tokens": 32}
N_CTX = 512  # tokens of each request
RATE, BUSY = 5.0, (0.70, 0.85)  # requests per second, and how busy they may keep the unbatched server
AIM = 0.775  # of the server's time, where RATE does not lead there
FIRST_SEED = 100  # of the rounds; what comes before them has lower ones


def main(arguments=None) -> int:
    try:
        args = parse_arguments(arguments)
        if args.install:
            print(load_servers.install_llama(args.work))
            return 0
        report = measure(args)
    except (EdgeKitError, EngineError) as error:
        print(f"serving: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(serving_report.markdown(report), end="")
    return 0


def parse_arguments(arguments=None):
    parser = Parser(prog="serving.py", description="the serving goals, measured on this machine")
    parser.add_argument("--flagship", metavar="FILE", help="a .nb file for the clients that start together")
    parser.add_argument("--gguf", metavar="FILE", help="the same shape in Q8_0, for llama-server")
    parser.add_argument("--demo", metavar="FILE", help="a .nb file for the random arrivals")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="of each server; default: 2")
    parser.add_argument("--clients", type=positive, default=8, metavar="N", help="default: 8")
    parser.add_argument("--repeat", type=positive, default=3, metavar="N", help="rounds; default: 3")
    parser.add_argument(
        "--seconds", type=positive, default=60, metavar="N", help="of random arrivals per round; default: 60"
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures here")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "peers", metavar="DIR")
    parser.add_argument("--install", action="store_true", help="build llama-server in DIR, nothing else")
    args = parser.parse_args(arguments)
    args.work = args.work.absolute()
    if not (args.install or args.flagship or args.demo):
        raise UsageError("nothing to measure: give --flagship FILE, --demo FILE or both")
    for name in ("flagship", "gguf", "demo"):
        path = getattr(args, name)
        if path is not None and not os.path.isfile(path):
            raise UsageError(f"--{name} {path} is not a file")
    if args.gguf and not args.flagship:
        raise UsageError("--gguf is what --flagship is held against: give both")
    if args.json:
        require_writable(args.json, "--json")
    return args


def measure(args) -> dict:
    """Everything that the outputs show."""
    import lite_runtime

    report = {
        "machine": {"cpu": machine.cpu_model(), "cores": os.cpu_count()},
        "kernel": lite_runtime.available_isas()[0],
        "threads": args.threads,
        "repeat": args.repeat,
        "goals": [],
    }
    if args.flagship:
        report["together"] = together(args)
        report["goals"] += serving_report.together_goals(report["together"])
    if args.demo:
        report["poisson"] = poisson(args)
        report["goals"] += serving_report.poisson_goals(report["poisson"])
    return report


def together(args) -> dict:
    """One client and many on this kit's server, and many on llama.cpp's, in turns."""
    ceilings = Ceilings(os.path.getsize(args.flagship))
    own = load_servers.edge_kit(args.flagship, args.threads, N_CTX, args.clients)
    cases = {"one": (own, 1), "many": (own, args.clients)}
    peer_missing = None if args.gguf else "no --gguf"
    try:
        program = load_servers.llama_program(args.work)
        if args.gguf:
            command = load_servers.llama(program, args.gguf, args.threads, N_CTX, args.clients)
            cases["llama_one"] = (command, 1)
            cases["llama_many"] = (command, args.clients)
    except EngineError as error:
        peer_missing = str(error)
    rounds, bandwidths = {name: [] for name in cases}, [ceilings.read_bandwidth(args.threads)]
    for turn in range(args.repeat):
        for name, (command, n) in cases.items():
            say(f"round {turn + 1}: {n} client{'s' * (n > 1)}, {Path(str(command[0])).name}")
            with load_servers.serving(command) as (url, _):
                load = Load(url, **TOGETHER, seed=FIRST_SEED + turn)
                rounds[name].append(checked(load.open_loop([0.0] * n)))
            bandwidths.append(ceilings.read_bandwidth(args.threads))
    # The first of the many clients asks what the one asks.
    alone, batched = ([run["checksums"][0] for run in rounds[name]] for name in ("one", "many"))
    return {
        "clients": args.clients,
        **TOGETHER,
        "rounds": rounds,
        "checksums_equal": alone == batched,
        "peer_missing": peer_missing,
        "read_bandwidth_gbs": spread([value / 1e9 for value in bandwidths]),
    }


def poisson(args) -> dict:
    """The same random arrivals on this kit's server with batching and without, in turns."""
    unbatched, batched = (
        load_servers.edge_kit(args.demo, args.threads, N_CTX, parallel) for parallel in (1, args.clients)
    )
    seconds = service_seconds(unbatched)
    rate = RATE if BUSY[0] <= RATE * seconds <= BUSY[1] else AIM / seconds
    n = requests_in(args.seconds, rate)
    rounds = {"unbatched": [], "batched": []}
    for turn in range(args.repeat):
        for name, command in (("unbatched", unbatched), ("batched", batched)):
            say(f"round {turn + 1}: {n} requests at {rate:.2f}/s, {name}")
            with load_servers.serving(command) as (url, _):
                load = Load(url, **POISSON, seed=FIRST_SEED + turn)
                before = step_seconds(load.server)
                run = checked(load.open_loop(arrivals(rate, n, FIRST_SEED + turn)))
                run["busy"] = (step_seconds(load.server) - before) / run["seconds"]
                rounds[name].append(run)
    texts = [[run["checksums"] for run in runs] for runs in rounds.values()]
    return {
        "rate": rate,
        "requests": n,
        "service_seconds": seconds,
        **POISSON,
        "rounds": rounds,
        "checksums_equal": texts[0] == texts[1],
    }


def service_seconds(command: list) -> float:
    """How long the server works on one request when there is no other."""
    with load_servers.serving(command) as (url, _):
        load = Load(url, **POISSON)
        runs = [load.ask(index, 0.0) for index in range(2)]  # the first ones warm up
        before, n = step_seconds(load.server), 6
        runs += [load.ask(2 + index, 0.0) for index in range(n)]
        for run in runs:
            if run.error is not None:
                raise EdgeKitError(f"the server answers a single request with: {run.error}")
        return (step_seconds(load.server) - before) / n


def step_seconds(server) -> float:
    """What an `edge-kit serve` has spent in steps since it started."""
    lines = (line.split() for line in server.get("/metrics").splitlines())
    return next(float(line[1]) for line in lines if line and line[0] == "edge_kit_step_seconds_total")


def checked(run: dict) -> dict:
    """A run whose requests are all answered at the lengths that were asked for; else EdgeKitError."""
    wrong = run["wrong_prompt_length"] + run["wrong_answer_length"]
    if run["errors"] or wrong or run["cached_tokens"]:
        raise EdgeKitError(
            f"a run that cannot count: errors {run['errors']}, {wrong} of another length, "
            f"{run['cached_tokens']} tokens of prompts from a cache"
        )
    return run


def say(text: str) -> None:
    print(f"serving: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
