"""What `run` and `chat` share: options of a generation, and streaming that Ctrl-C can stop at any time."""

from __future__ import annotations

import argparse
import queue
import signal
import sys
import threading

from lite_runtime.model import KV_DTYPES

GENERATION_OPTIONS = (
    "max_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "seed",
    "speculate",
)


def positive(text: str) -> int:
    """An argparse type: an integer from 1 on."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}', expected an integer of at least 1")
    return value


def whole(text: str) -> int:
    """An argparse type: an integer from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}', expected an integer of at least 0")
    return int(text)


def add_model_arguments(parser) -> None:
    """FILE, --threads, --n-ctx and --kv-dtype."""
    parser.add_argument("file", metavar="FILE", help="a .nb file")
    parser.add_argument("--threads", type=positive, metavar="N", help="default: the best for this machine")
    parser.add_argument(
        "--n-ctx", type=positive, metavar="N", help="most tokens of prompt and answer together"
    )
    parser.add_argument(
        "--kv-dtype",
        choices=KV_DTYPES,
        default=KV_DTYPES[0],
        help=f"keys and values of the context: int8 takes half the memory; default: {KV_DTYPES[0]}",
    )


def add_generation_arguments(parser) -> None:
    """Sampling options; what is not given comes from the model's generation_config.json."""
    group = parser.add_argument_group("generation (default: the model's generation_config.json)")
    group.add_argument(
        "--max-new-tokens", type=positive, metavar="N", help="default: as many as the context holds"
    )
    group.add_argument("--temperature", type=float, metavar="T", help="0 = greedy")
    group.add_argument("--top-k", type=int, metavar="N", help="0 = off")
    group.add_argument("--top-p", type=float, metavar="P", help="1 = off")
    group.add_argument("--min-p", type=float, metavar="P", help="0 = off")
    group.add_argument("--repetition-penalty", type=float, metavar="R", help="1 = off")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "--speculate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="guess ahead where the answer repeats what stood before: faster, same answer; default: on",
    )
    parser.add_argument("--system", metavar="TEXT", help="system message in front of the conversation")


def generation_options(args) -> dict:
    """Keyword arguments of session.generate."""
    return {name: getattr(args, name) for name in GENERATION_OPTIONS}


def load_model(args):
    """The model named on the command line."""
    import lite_runtime

    return lite_runtime.load(args.file, n_threads=args.threads, n_ctx=args.n_ctx, kv_dtype=args.kv_dtype)


def stream(items, cancel):
    """The items of a generation or a conversation, for the main thread.

    The first Ctrl-C calls `cancel`: the last item then has finish_reason "cancelled". Native code has a
    thread of its own, since Python sees Ctrl-C only between bytecodes of the main one.
    """
    results = queue.Queue()

    def work():
        try:
            for item in items:
                results.put(item)
        except BaseException as error:  # handed to the main thread
            results.put(error)

    def stop(_signal, _frame):
        signal.signal(signal.SIGINT, previous)
        cancel()

    previous = signal.signal(signal.SIGINT, stop)
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    ended = False
    try:
        while not ended:
            result = results.get()
            ended = isinstance(result, BaseException) or result.finish_reason is not None
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        signal.signal(signal.SIGINT, previous)
        if not ended:  # the consumer left early
            cancel()
        worker.join()


def show(items, out=None):
    """Writes the text as it comes, to stdout by default; gives (whole text, token ids, last Item)."""
    out = out or sys.stdout
    parts, tokens, item = [], [], None
    for item in items:
        out.write(item.text)
        out.flush()
        parts.append(item.text)
        if item.token is not None:
            tokens.append(item.token)
    return "".join(parts), tokens, item


def speeds(item) -> str:
    """One line about a finished generation."""
    line, n_cached = f"{item.n_prompt} prompt tokens", getattr(item, "n_cached", 0)
    if n_cached:
        line += f", {n_cached} of them known, the rest"
    if item.n_generated:
        line += f" at {item.prefill_tps:.1f} tokens/s, {item.n_generated} new"
    if item.n_generated > 1:
        line += f" at {item.decode_tps:.1f} tokens/s"
    where = getattr(item, "cut_in", None)
    reasons = {
        "stop": "the model ended its answer",
        "length": f"cut{' in the ' + where if where else ''}: --max-new-tokens or the context was reached",
        "repetition": "cut: it repeated itself",
        "cancelled": "cancelled",
    }
    return f"[{line}; {reasons[item.finish_reason]}]"
