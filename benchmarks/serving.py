"""The two serving goals: many clients against one and against llama.cpp's server, and batching against none.

    python benchmarks/serving.py --install
    python benchmarks/serving.py --flagship FLAGSHIP.nb --gguf FLAGSHIP-Q8_0.gguf --demo DEMO.nb

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
ALONE = 8  # requests, one after another, that tell how long one takes
PILOTS = 3  # runs that may be needed to find the rate
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
        report["goals"] += serving_report.poisson_goals(report["poisson"], BUSY)
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
            with load_servers.serving(command) as (url, pid):
                load = Load(url, **TOGETHER, seed=FIRST_SEED + turn)
                rounds[name].append(watched(load, [0.0] * n, pid))
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
    commands = {
        name: load_servers.edge_kit(args.demo, args.threads, N_CTX, parallel)
        for name, parallel in (("unbatched", 1), ("batched", args.clients))
    }
    rate, pilots = find_rate(commands["unbatched"], args.seconds)
    rounds = {name: [] for name in commands}
    for turn in range(args.repeat):
        for name, command in commands.items():
            say(f"round {turn + 1}: {rate:.2f} requests/s, {name}")
            rounds[name].append(arrive(command, rate, args.seconds, FIRST_SEED + turn))
    texts = [[run["checksums"] for run in runs] for runs in rounds.values()]
    return {
        "rate": rate,
        "requests": requests_in(args.seconds, rate),
        "pilots": pilots,
        **POISSON,
        "rounds": rounds,
        "checksums_equal": texts[0] == texts[1],
    }


def find_rate(unbatched: list, seconds: float) -> tuple:
    """(rate that keeps the unbatched server as busy as it has to be, what was tried on the way)."""
    with load_servers.serving(unbatched) as (url, _):
        load = Load(url, **POISSON)
        before = step_seconds(load.server)
        runs = [load.ask(index, 0.0) for index in range(ALONE)]
        each = (step_seconds(load.server) - before) / ALONE
    failed = [run.error for run in runs if run.error is not None]
    if failed:
        raise EdgeKitError(f"the server answers a single request with: {failed[0]}")
    rate = RATE if BUSY[0] <= RATE * each <= BUSY[1] else AIM / each
    pilots = []
    while len(pilots) < PILOTS:
        say(f"looking for the rate: {rate:.2f}/s")
        busy = arrive(unbatched, rate, seconds, len(pilots))["busy"]
        pilots.append({"rate": rate, "busy": busy})
        if BUSY[0] <= busy <= BUSY[1]:
            break
        rate *= AIM / busy
    return rate, pilots


def arrive(command: list, rate: float, seconds: float, seed: int) -> dict:
    """Figures of random arrivals at a server of its own, with the share of time that it was busy."""
    with load_servers.serving(command) as (url, pid):
        load = Load(url, **POISSON, seed=seed)
        before = step_seconds(load.server)
        run = watched(load, arrivals(rate, requests_in(seconds, rate), seed), pid)
        run["busy"] = (step_seconds(load.server) - before) / run["seconds"]
    return run


def step_seconds(server) -> float:
    """What an `edge-kit serve` has spent in steps since it started."""
    lines = (line.split() for line in server.get("/metrics").splitlines())
    return next(float(line[1]) for line in lines if line and line[0] == "edge_kit_step_seconds_total")


def watched(load: Load, starts: list, pid: int) -> dict:
    """Figures of a run, with the share of all cores that went neither to the server nor to the load.

    EdgeKitError unless all requests are answered, and with the lengths that were asked for.
    """
    before = machine.foreign_cpu_seconds(pid)
    run = load.open_loop(starts)
    after = machine.foreign_cpu_seconds(pid)
    told = before is not None and after is not None
    run["foreign"] = machine.share_of_cores(after - before, run["seconds"]) if told else None
    wrong = run["wrong_prompt_length"] + run["wrong_answer_length"]
    # A token that begins every text is cached, and no other.
    if run["errors"] or wrong or run["cached_tokens"] > run["requests"]:
        raise EdgeKitError(
            f"a run that cannot count: errors {run['errors']}, {wrong} of another length, "
            f"{run['cached_tokens']} tokens of prompts from a cache"
        )
    return run


def say(text: str) -> None:
    print(f"serving: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
