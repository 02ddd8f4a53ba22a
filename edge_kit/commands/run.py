"""`edge-kit run`: answers one prompt."""

from __future__ import annotations

import io
import json
import sys
import time

from lite_runtime.errors import UsageError
from lite_runtime.repetition import until_repetition

from . import generation

HELP = "answer one prompt"


def add_arguments(parser) -> None:
    generation.add_model_arguments(parser)
    parser.add_argument("prompt", metavar="PROMPT", help="the text; - reads it from standard input")
    parser.add_argument(
        "--raw", action="store_true", help="send the prompt as it is, without the chat template"
    )
    parser.add_argument(
        "--json", action="store_true", help="print text, token ids, finish reason and timings as JSON"
    )
    generation.add_generation_arguments(parser)


def run(args) -> int:
    if args.raw and args.system is not None:
        raise UsageError("--system needs the chat template, --raw sends none: give one of them")
    prompt = _read_stdin() if args.prompt == "-" else args.prompt
    started = time.perf_counter()
    with generation.load_model(args) as model, model.session() as session:
        load_seconds = time.perf_counter() - started
        if args.raw:
            ids = model.text.encode(prompt)
        else:
            ids = model.text.encode_chat(messages(args.system, prompt))
        items = session.generate(ids, **generation.generation_options(args))  # arguments are checked here
        items = generation.stream(items if args.raw else until_repetition(items), session.cancel)
        text, tokens, last = generation.show(items, io.StringIO() if args.json else sys.stdout)
        if args.json:
            print(
                json.dumps(
                    _report(model, ids, text, tokens, last, load_seconds), ensure_ascii=False, indent=2
                )
            )
        else:
            print(flush=True)
            print(generation.speeds(last), file=sys.stderr)
    return 130 if last.finish_reason == "cancelled" else 0


def messages(system, prompt: str) -> list:
    """One question as chat messages."""
    first = [{"role": "system", "content": system}] if system is not None else []
    return first + [{"role": "user", "content": prompt}]


def _report(model, ids, text, tokens, last, load_seconds) -> dict:
    return {
        "text": text,
        "token_ids": tokens,
        "prompt_ids": [int(i) for i in ids],
        "finish_reason": last.finish_reason,
        "timings": {
            "load_s": load_seconds,
            "prefill_tps": last.prefill_tps,
            "decode_tps": last.decode_tps,
        },
        "threads": model.info.n_threads,
        "kernel": model.info.isa,
    }


def _read_stdin() -> str:
    data = sys.stdin.buffer.read()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 (byte {error.start}); convert it first") from None
    return text[:-1] if text.endswith("\n") else text
