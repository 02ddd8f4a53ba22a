"""`edge-kit chat`: a conversation in a terminal or a pipe. The cache is kept: only new text is prefilled."""

from __future__ import annotations

import os
import sys

from lite_runtime.conversation import OVERFLOWS

from . import generation

HELP = "talk to a model, in a terminal or line by line"


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
    from edge_kit.chat.chat import Chat

    options = generation.generation_options(args)
    limits = {"overflow": args.overflow, "thinking_budget": args.thinking_budget}
    name = os.path.basename(args.file)
    with generation.load_model(args) as model, Chat(model, name, args.system, options, limits) as chat:
        chat.run(_front(chat))
    return 0


def _front(chat):
    """The one for a terminal, where this is one and what it needs is installed (extra `chat`)."""
    able = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    if able and sys.stdin.isatty() and sys.stdout.isatty():
        try:
            from edge_kit.chat.terminal import TerminalFront

            return TerminalFront(chat.thoughts)
        except ImportError:
            pass
    from edge_kit.chat.plain import PlainFront

    return PlainFront()
