"""`edge-kit chat`: a conversation, line by line. The cache is kept: only what is new is prefilled."""

from __future__ import annotations

import sys

from lite_runtime.errors import ContextFullError

from . import generation

HELP = "talk to a model, line by line"


def add_arguments(parser) -> None:
    generation.add_model_arguments(parser)
    generation.add_generation_arguments(parser)


def run(args) -> int:
    options = generation.generation_options(args)
    with generation.load_model(args) as model, model.session() as session:
        history = [{"role": "system", "content": args.system}] if args.system is not None else []
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
        print("Ctrl-C stops an answer, Ctrl-D ends the conversation.", file=sys.stderr)
        while True:
            try:
                line = input("> ")
            except EOFError:
                print()
                return 0
            if not line.strip():
                continue
            if any("\ud800" <= character <= "\udfff" for character in line):
                print("[not sent: the line is not UTF-8]", file=sys.stderr)
                continue
            history.append({"role": "user", "content": line})
            try:
                text, last = answer(model, session, history, options)
            except ContextFullError as error:
                history.pop()
                print(f"[not sent: {error}]", file=sys.stderr)
                continue
            history.append({"role": "assistant", "content": text})
            print(flush=True)
            print(generation.speeds(last), file=sys.stderr)


def answer(model, session, history: list, options: dict):
    """Shows the model's answer to `history`; gives its text and the last Item.

    The session is cut to what it has in common with the rendered history. At least one token is prefilled,
    since logits come from an input.
    """
    ids = model.text.encode_chat(history)
    common = common_prefix(session.tokens, ids[:-1])
    session.cut(common)
    text, _, last = generation.show(generation.stream(session, ids[common:], options))
    return text, last


def common_prefix(a: list, b: list) -> int:
    """How many tokens `a` and `b` begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
