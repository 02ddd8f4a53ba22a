"""How long a second turn waits for its first token, with the cache of the first and without.

    python benchmarks/turns.py --model FILE.nb [--threads N] [--history N] [--repeat N] [--json FILE]

The first turn is a question and an answer of about --history tokens together; the second question is short.
Where the model's template opens a block of thinking, the first answer thinks, and the template drops that for
the second turn, which moves the answer. Each case is timed with what the first turn left in the cache, and
with what idle time adds to it, each next to a cold session with the same messages; and the logits of the
second prompt's last token are held against the cold ones. End tokens end no answer here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__" and not __package__:
    sys.path[0] = str(ROOT)

import numpy as np  # noqa: E402

import lite_runtime  # noqa: E402
from benchmarks.comparison.figures import spread  # noqa: E402
from edge_kit.baseline import require_writable  # noqa: E402
from edge_kit.cli import Parser  # noqa: E402
from edge_kit.commands.generation import positive  # noqa: E402
from lite_runtime.conversation import Conversation  # noqa: E402
from lite_runtime.errors import EdgeKitError, UsageError  # noqa: E402

THINKING, ANSWER = 48, 96  # tokens of the first turn's answer
WORDS = "the river carries a small boat past seven old mills and nobody on the bank looks up ".split()
SECOND = "Please say that again, but in one short sentence."


def main(arguments=None) -> int:
    parser = Parser(prog="turns.py", description="first token of a second turn, warm and cold")
    parser.add_argument("--model", required=True, metavar="FILE", help="a .nb file")
    parser.add_argument("--threads", type=positive, metavar="N", help="default: the best for this machine")
    parser.add_argument(
        "--history", type=positive, default=1000, metavar="N", help="of the first turn, about; default: 1000"
    )
    parser.add_argument("--repeat", type=positive, default=3, metavar="N", help="runs of each; default: 3")
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    try:
        args = parser.parse_args(arguments)
        if args.history < 2 * ANSWER:
            raise UsageError(f"--history {args.history}, expected at least {2 * ANSWER}")
        if args.json:
            require_writable(args.json, "--json")
        report = measure(args.model, args.threads, args.history, args.repeat)
        if args.json:
            Path(args.json).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    except EdgeKitError as error:
        print(f"turns: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(markdown(report), end="")
    return 0


def measure(path: str, n_threads, n_history: int, repeat: int) -> dict:
    """Figures of both cases: what the first turn left, and what idle time made of it."""
    with lite_runtime.load(path, n_threads=n_threads) as model:
        model.eos_ids = frozenset()
        with Conversation(model, thinking_budget=THINKING, prefill_when_idle=False) as first:
            question, n_new = _question(model, n_history), THINKING + ANSWER
            items = list(first.ask(question, max_new_tokens=n_new, temperature=0))
            thinks = items[-1].n_reasoning > 0
            rows = [_second_turn(first, "as the first turn left it", repeat)]
            first.settle()
            rows.append(_second_turn(first, "after idle time", repeat))
        return {
            "model": path,
            "kernel": model.info.isa,
            "threads": model.info.n_threads,
            "repeat": repeat,
            "thinking_dropped": thinks,
            "rows": rows,
        }


def _question(model, n_history: int) -> str:
    """A text that makes a first prompt of just below n_history - ANSWER tokens."""
    low, high = 1, n_history
    while high - low > 1:
        middle = (low + high) // 2
        text = " ".join((WORDS * middle)[:middle])
        n = len(model.text.encode_chat([{"role": "user", "content": text}]))
        low, high = (middle, high) if n <= n_history - ANSWER else (low, middle)
    return " ".join((WORDS * low)[:low])


def _second_turn(first: Conversation, cache: str, repeat: int) -> dict:
    warm, cold = [], []
    for _ in range(repeat):
        cold.append(_ask(first, first.model.session()))
        warm.append(_ask(first, first.session.fork()))
    return {
        "cache": cache,
        "prompt_tokens": warm[0].n_prompt,
        "new_tokens": warm[0].n_prompt - warm[0].n_cached,
        "cold_ms": spread([1e3 * item.first_token_seconds for item in cold]),
        "warm_ms": spread([1e3 * item.first_token_seconds for item in warm]),
        "logits_equal": _logits_equal(first),
    }


def _ask(first: Conversation, session):
    """The first item of the second turn, in a conversation of its own."""
    options = {"messages": first.messages, "session": session, "prefill_when_idle": False}
    with Conversation(first.model, **options) as conversation:
        return next(conversation.ask(SECOND, max_new_tokens=1, temperature=0))


def _logits_equal(first: Conversation) -> bool:
    with Conversation(first.model, messages=first.messages, prefill_when_idle=False) as conversation:
        list(conversation.ask(SECOND, max_new_tokens=1))
        ids = conversation.session.tokens  # of the prompt: the one new token was no input
    with first.model.session() as cold, first.session.fork() as warm:
        common = warm.reuse(ids)
        segments = [(warm, ids[common:], "last")], [(cold, ids, "last")]
        (a,), (b,) = (first.model.forward(each) for each in segments)
        return bool(np.array_equal(a, b))


def markdown(report: dict) -> str:
    """The table, with what it was measured on."""
    thinking = "its thinking dropped" if report["thinking_dropped"] else "without thinking"
    lines = [
        f"Second turn of {report['model']} ({report['kernel']}, {report['threads']} threads; medians of "
        f"{report['repeat']}), the first one's answer {thinking}.",
        "",
        "| cache | prompt tokens | of them new | first token | cold | share | logits as cold |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        warm, cold = row["warm_ms"]["median"], row["cold_ms"]["median"]
        lines.append(
            f"| {row['cache']} | {row['prompt_tokens']} | {row['new_tokens']} | {warm:.0f} ms "
            f"| {cold:.0f} ms | {warm / cold:.1%} | {'equal' if row['logits_equal'] else 'DIFFERENT'} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
