"""`edge-kit chat`: a conversation, line by line. The cache is kept: only what is new is prefilled."""

from __future__ import annotations

import sys

from lite_runtime.conversation import OVERFLOWS, Conversation
from lite_runtime.errors import ContextFullError

from . import generation

HELP = "talk to a model, line by line"


def add_arguments(parser) -> None:
    generation.add_model_arguments(parser)
    generation.add_generation_arguments(parser)
    parser.add_argument(
        "--overflow",
        choices=OVERFLOWS,
        default=OVERFLOWS[0],
        help="where the context does not hold the conversation: refuse the line, stop without an answer, or "
        f"forget the oldest turns; default: {OVERFLOWS[0]}",
    )
    parser.add_argument(
        "--thinking-budget",
        type=generation.whole,
        metavar="N",
        help="most tokens that the model may think before it answers; default: any number",
    )


def run(args) -> int:
    options = generation.generation_options(args)
    limits = {"overflow": args.overflow, "thinking_budget": args.thinking_budget}
    with generation.load_model(args) as model, Conversation(model, args.system, **limits) as conversation:
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
            try:
                items = conversation.ask(line, **options)
            except ContextFullError as error:
                print(f"[not sent: {error}]", file=sys.stderr)
                continue
            last = show(generation.stream(items, conversation.cancel))
            print(flush=True)
            print(generation.speeds(last), file=sys.stderr)


def show(items):
    """Writes reasoning and answer as they come, an empty line between them; gives the last ChatItem."""
    thought, item = False, None
    for item in items:
        thought = thought or bool(item.reasoning)
        gap = "\n\n" if thought and item.content else ""
        thought = thought and not item.content
        print(item.reasoning + gap + item.content, end="", flush=True)
    return item
