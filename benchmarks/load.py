"""Load on any OpenAI-compatible server: what it answers in a second, and how long its clients wait.

    python benchmarks/load.py --url http://127.0.0.1:8000 --rate 5 --seconds 60
    python benchmarks/load.py --url http://127.0.0.1:8000 --together 8 --prompt-tokens 32 --new-tokens 128
    python benchmarks/load.py --url http://127.0.0.1:8000 --together 4 --soak 1200 --pid PID

With --rate requests arrive at random times (Poisson), whether or not earlier ones are answered; with
--together all start at once. Each has a prompt of its own, in words that are a token each, and is answered
greedily with --new-tokens tokens, for which `ignore_eos` is sent; both lengths are checked in the server's
usage. The checksum is of all texts: runs with the same seed and lengths on the same model must agree in it.
--soak keeps up the load, with --together by as many clients that ask again once they are answered, and gives
the slope of the server's memory after the first third of the time. Conversations that the server keeps must
fill their bound within that third: start edge-kit with a small --cache-mb. Exit status 1 for any error, an
answer of another length, or a growing memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__" and not __package__:
    sys.path[0] = str(ROOT)

from benchmarks import load_memory  # noqa: E402
from benchmarks.load_client import ROUTES, Answer, RequestError, Server  # noqa: E402
from benchmarks.load_figures import figures, table  # noqa: E402
from benchmarks.load_prompts import Prompts, arrivals  # noqa: E402
from edge_kit.baseline import require_writable  # noqa: E402
from edge_kit.cli import Parser  # noqa: E402
from edge_kit.commands.generation import positive, whole  # noqa: E402
from lite_runtime.errors import EdgeKitError, UsageError  # noqa: E402

IGNORE_EOS = {"ignore_eos": True}
# edge-kit's own server ends an answer that goes round in circles, which random weights soon do.
OWN_FIELDS = {"edge-kit": {"stop_at_repetition": False}}
_STACK = 512 << 10  # bytes of a request's thread


def main(arguments=None) -> int:
    try:
        args = parse_arguments(arguments)
        report = run(args)
        if args.json:
            Path(args.json).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    except EdgeKitError as error:
        print(f"load: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    print(table(report), end="")
    if "memory" in report:
        print(load_memory.line(report["memory"]))
    grown = "memory" in report and not load_memory.is_steady(report["memory"], args.most_growth)
    if grown:
        print(f"The memory grows by {args.most_growth:g} MB per 1,000 requests or more, or cannot be told.")
    return 1 if report["errors"] or report["wrong_answer_length"] or grown else 0


def parse_arguments(arguments=None):
    parser = Parser(prog="load.py", description="load on an OpenAI-compatible server")
    parser.add_argument("--url", required=True, metavar="URL", help="http://HOST:PORT")
    parser.add_argument("--api-key", metavar="KEY", help="sent as a bearer token; default: $OPENAI_API_KEY")
    parser.add_argument("--model", metavar="NAME", help="default: the first of /v1/models")
    parser.add_argument("--route", choices=ROUTES, default="completions", help="default: completions")
    parser.add_argument("--rate", type=_above_0, metavar="X", help="requests per second, at random times")
    parser.add_argument("--together", type=positive, metavar="N", help="clients that start at once")
    length = parser.add_argument_group("how long")
    length.add_argument("--requests", type=positive, metavar="N", help="with --rate; default: 100")
    length.add_argument("--seconds", type=_above_0, metavar="X", help="with --rate, in place of --requests")
    length.add_argument("--soak", type=_above_0, metavar="SECONDS", help="keep up the load, watch the memory")
    length.add_argument(
        "--most-growth",
        type=_above_0,
        default=1.0,
        metavar="MB",
        help="of the memory per 1,000 requests of a soak, from which on it fails; default: 1",
    )
    length.add_argument("--pid", type=positive, metavar="N", help="of the server; else its /metrics are read")
    asked = parser.add_argument_group("what is asked")
    asked.add_argument("--prompt-tokens", type=positive, default=64, metavar="N", help="default: 64")
    asked.add_argument("--new-tokens", type=positive, default=32, metavar="N", help="default: 32")
    asked.add_argument(
        "--shared-tokens", type=whole, default=0, metavar="N", help="that all prompts begin with; default: 0"
    )
    asked.add_argument("--seed", type=whole, default=0, metavar="N", help="of prompts and times; default: 0")
    asked.add_argument(
        "--fields",
        type=_fields,
        metavar="JSON",
        help=f"more of each request; default: {json.dumps(IGNORE_EOS)}; {{}} for a server that refuses it",
    )
    asked.add_argument(
        "--timeout", type=_above_0, default=600.0, metavar="X", help="seconds of silence; default: 600"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    args = parser.parse_args(arguments)
    if (args.rate is None) == (args.together is None):
        raise UsageError("how requests come is missing or given twice: one of --rate and --together")
    if args.rate is None and (args.requests or args.seconds):
        raise UsageError("--requests and --seconds go with --rate: --together starts one request per client")
    if sum(value is not None for value in (args.requests, args.seconds, args.soak)) > 1:
        raise UsageError("--requests, --seconds and --soak each say how long: give one of them")
    if args.pid is not None and args.soak is None:
        raise UsageError("--pid goes with --soak")
    if args.json:
        require_writable(args.json, "--json")
    return args


def _above_0(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"'{text}', expected a number above 0")
    return value


def _fields(text: str) -> dict:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"'{text}', expected a JSON object")
    return value


def run(args) -> dict:
    """The report of what the command line asked for."""
    api_key = os.environ.get("OPENAI_API_KEY") if args.api_key is None else args.api_key
    load = Load(
        args.url,
        args.prompt_tokens,
        args.new_tokens,
        seed=args.seed,
        n_shared=args.shared_tokens,
        fields=args.fields,
        api_key=api_key,
        model=args.model,
        chat=args.route == "chat",
        timeout=args.timeout,
    )
    asked = {key: value for key, value in vars(args).items() if key not in ("api_key", "json")}
    if args.soak:
        return {"options": asked, **soak(load, args.soak, args.rate, args.together, args.pid)}
    if args.together:
        return {"options": asked, **load.open_loop([0.0] * args.together)}
    n = requests_in(args.seconds, args.rate) if args.seconds else args.requests or 100
    return {"options": asked, **load.open_loop(arrivals(args.rate, n, args.seed))}


def requests_in(seconds: float, rate: float) -> int:
    return max(1, round(rate * seconds))


class Load:
    """Requests of one kind to one server. Raises RequestError if it cannot be asked at all."""

    def __init__(
        self, url: str, prompt_tokens: int, new_tokens: int, seed=0, n_shared=0, fields=None, **options
    ):
        self.server = Server(url, **options)
        owner = self.server.find_model().get("owned_by")
        fields = IGNORE_EOS if fields is None else fields
        self.server.fields = {**OWN_FIELDS.get(owner, {}), **fields}
        self.prompt_tokens, self.new_tokens = prompt_tokens, new_tokens
        self.seed = seed
        self.prompts = Prompts(prompt_tokens, self._count, seed, n_shared)

    def _count(self, text: str) -> int:
        answer = Answer(-1, time.perf_counter())
        self.server.ask(answer, text, 1)
        if answer.error is not None:
            raise RequestError("the server answers no first request", answer.error)
        if not answer.prompt_tokens:
            raise RequestError("the server's streams tell no usage, which the lengths are checked by")
        return answer.prompt_tokens

    def ask(self, index: int, due: float) -> Answer:
        answer = Answer(index, due)
        self.server.ask(answer, self.prompts.text(index), self.new_tokens)
        return answer

    def figures(self, answers: list, cpu_seconds: float) -> dict:
        found = figures(answers, self.prompt_tokens, self.new_tokens)
        return {**found, "client_cpu_share": cpu_seconds / found["seconds"]}

    def open_loop(self, starts: list) -> dict:
        """Figures of one request at each of `starts` (seconds, ascending), whatever becomes of the others."""
        answers = [None] * len(starts)

        def one(index: int) -> None:
            answers[index] = self.ask(index, began + starts[index])

        cpu = time.process_time()
        began = time.perf_counter()
        with _threads() as start:
            for index, moment in enumerate(starts):
                time.sleep(max(0.0, began + moment - time.perf_counter()))
                start(one, index)
        return self.figures(answers, time.process_time() - cpu)


@contextlib.contextmanager
def _threads():
    """start(function, *arguments) in a thread of its own; all have ended behind the block."""
    threads = []
    stack = threading.stack_size(_STACK)

    def start(function, *arguments):
        threads[:] = [thread for thread in threads if thread.is_alive()]
        threads.append(threading.Thread(target=function, args=arguments, daemon=True))
        threads[-1].start()

    try:
        yield start
        for thread in threads:
            thread.join()
    finally:
        threading.stack_size(stack)


def soak(load: Load, seconds: float, rate: float | None, clients: int | None, pid: int | None) -> dict:
    """Figures of a steady load, and "memory". With `clients`, each asks again once it is answered."""
    answers, lock = [], threading.Lock()
    memory = load_memory.Memory(load.server, pid)
    starts = arrivals(rate, requests_in(seconds, rate), load.seed) if rate else None
    cpu = time.process_time()
    began = time.perf_counter()

    def one(index: int, due: float) -> None:
        answer = load.ask(index, due)
        with lock:
            answers.append(answer)
        if answer.error is not None and not rate:
            time.sleep(0.1)  # a server that is gone must not be asked thousands of times

    def client(number: int) -> None:
        index = number
        while time.perf_counter() - began < seconds:
            one(index, time.perf_counter())
            index += clients

    with _threads() as start, memory.watch(lambda: len(answers)):
        if rate:
            for index, moment in enumerate(starts):
                time.sleep(max(0.0, began + moment - time.perf_counter()))
                start(one, index, began + moment)
        else:
            for number in range(clients):
                start(client, number)
            time.sleep(max(0.0, began + seconds - time.perf_counter()))
    found = load.figures(answers, time.process_time() - cpu)
    del found["checksums"]
    return {**found, "memory": memory.report()}


if __name__ == "__main__":
    sys.exit(main())
