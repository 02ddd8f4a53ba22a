"""What prompt-lookup speculation gains where an answer repeats its prompt, and costs where nothing matches.

    python benchmarks/speculation.py --model FILE.nb [--threads N] [--repeat N] [--new-tokens N] [--json FILE]
    python benchmarks/speculation.py --model demo.nb --record benchmarks/speculation_answers.json

Each answer is decoded twice at once, token by token in turns, with speculation and without, so that both see
the machine in the same state; the tokens must be equal. A model with random weights cannot answer: there an
answer recorded from a real one is replayed, that is, every forward runs with its drafts and every row is
sampled, but the recorded token is then taken as if it had been drawn. "no match" is a replay of ids of which
none comes twice. Ratios are time without speculation by time with it, decode alone.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__" and not __package__:
    sys.path[0] = str(ROOT)

import lite_runtime  # noqa: E402
from benchmarks.comparison.figures import spread  # noqa: E402
from benchmarks.speculation_prompts import FRESH, REPEATING  # noqa: E402
from edge_kit.baseline import require_writable  # noqa: E402
from edge_kit.cli import Parser  # noqa: E402
from edge_kit.commands.generation import positive  # noqa: E402
from lite_runtime import generate  # noqa: E402
from lite_runtime.errors import EdgeKitError, UsageError  # noqa: E402

ANSWERS = Path(__file__).with_name("speculation_answers.json")
OPTIONS = {"repeats its prompt": {"temperature": 0}, "fresh": {"temperature": 0.9, "seed": 1}}
PROMPTS = {"repeats its prompt": REPEATING, "fresh": FRESH}
N_CTX = 1024


def main(arguments=None) -> int:
    parser = Parser(prog="speculation.py", description="gain and cost of prompt-lookup speculation")
    parser.add_argument("--model", required=True, metavar="FILE", help="a .nb file")
    parser.add_argument("--threads", type=positive, metavar="N", help="default: the best for this machine")
    parser.add_argument("--repeat", type=positive, default=3, metavar="N", help="runs of each; default: 3")
    parser.add_argument("--new-tokens", type=positive, default=96, metavar="N", help="at most; default: 96")
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--record", metavar="FILE", help="write this model's answers here, measure nothing")
    try:
        args = parser.parse_args(arguments)
        for option in ("json", "record"):
            if getattr(args, option):
                require_writable(getattr(args, option), f"--{option}")
        if args.record:
            answers = record(args.model, args.threads, args.new_tokens)
            Path(args.record).write_text(json.dumps(answers, indent=2, ensure_ascii=False) + "\n", "utf-8")
            return 0
        rows = measure(args.model, args.threads, args.repeat, args.new_tokens)
        if args.json:
            Path(args.json).write_text(json.dumps(rows, indent=2) + "\n", "utf-8")
    except (EdgeKitError, OSError) as error:
        print(f"speculation: error: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    return 0 if all(row["same_tokens"] for row in rows) else 1


def measure(model_path, threads=None, repeat=3, new_tokens=96) -> list:
    """A row per prompt, and after those of a kind one with "prompt": "all".

    kind, prompt, replayed; ratio: speed-up with median, min and max over the runs ("all": over all runs of
    the kind); tokens and forwards of one decode with speculation, drafted and accepted tokens; same_tokens;
    model, threads, kernel.
    """
    with lite_runtime.load(model_path, n_threads=threads, n_ctx=N_CTX) as model:
        replayed = is_random(model)
        common = {
            "model": model.manifest.get("name", str(model_path)),
            "threads": model.info.n_threads,
            "kernel": model.info.isa,
        }
        rows = []
        for kind, prompts in PROMPTS.items():
            ratios, of_kind = [], []
            for name, prompt in prompts.items():
                ids = chat_ids(model, prompt)
                answer = recorded_ids(model, name) if replayed else None
                runs = [compare(model, ids, new_tokens, OPTIONS[kind], answer) for _ in range(repeat)]
                ratios += [run["ratio"] for run in runs]
                what = {"kind": kind, "prompt": name, "replayed": replayed}
                of_kind.append({**what, **summary(runs), **common})
            rows += [*of_kind, {**total(of_kind, ratios), **common}]
        runs = [compare(model, *unlike_ids(model, new_tokens)) for _ in range(repeat)]
        rows.append({"kind": "no match", "prompt": "all", "replayed": True, **summary(runs), **common})
        return rows


def is_random(model) -> bool:
    """Whether the model's weights are made, so that its answers mean nothing."""
    return str(model.manifest.get("source", "")).startswith("random:")


def chat_ids(model, prompt: str) -> list:
    return model.text.encode_chat([{"role": "user", "content": prompt}])


def recorded_ids(model, name: str) -> list:
    """The recorded answer to the prompt of that name, in this model's tokens."""
    return model.text.encode(json.loads(ANSWERS.read_text("utf-8"))[name], bos=False)


def record(model_path, threads, new_tokens) -> dict:
    """Prompt name -> the model's own answer."""
    answers = {}
    with lite_runtime.load(model_path, n_threads=threads, n_ctx=N_CTX) as model:
        if is_random(model):
            raise UsageError(f"{model_path} has random weights, expected a model that can answer")
        for kind, prompts in PROMPTS.items():
            for name, prompt in prompts.items():
                ids = chat_ids(model, prompt)
                with model.session() as session:
                    items = session.generate(ids, max_new_tokens=new_tokens, **OPTIONS[kind])
                    answers[name] = "".join(item.text for item in items)
    return answers


def compare(model, ids, new_tokens, options, answer=None, typical=False) -> dict:
    """One decode with and one without speculation, in turns. `answer`: token ids to replay.

    typical: all steps cost alike, so that the ratio is one of medians, which a few slow steps do not move.
    """
    n_new = min(new_tokens, len(answer)) if answer else new_tokens
    tokens, seconds, rows = {True: [], False: []}, {True: [], False: []}, {True: [], False: []}
    with contextlib.ExitStack() as stack:
        base = stack.enter_context(model.session())
        model.forward([(base, ids[:-1], "none")])
        streams = {}
        for speculate in (True, False):
            session = stack.enter_context(base.fork())
            streams[speculate] = session.generate(
                ids[-1:], max_new_tokens=n_new, speculate=speculate, **options
            )
        counted = stack.enter_context(counting(model))
        if answer:
            stack.enter_context(replaying(answer, len(ids)))
        ended = False
        while not ended:
            # In turns, each going first as often as the other.
            for speculate in (True, False) if len(tokens[True]) % 2 else (False, True):
                counted.clear()
                started = time.perf_counter()
                item = next(streams[speculate], None)
                seconds[speculate].append(time.perf_counter() - started)
                rows[speculate] += counted
                ended = item is None or item.finish_reason is not None
                tokens[speculate].append(item and item.token)
    if len(tokens[True]) < 2:
        raise UsageError("the model's answer is a single token, expected one whose decode can be timed")
    middle = statistics.median if typical else sum
    without, with_it = (middle(seconds[speculate][1:]) for speculate in (False, True))
    drafts = [n - 1 for n in rows[True][1:]]
    return {
        "ratio": without / with_it,
        "tokens": len(tokens[True]),
        "forwards": len(rows[True]),
        "drafted": sum(drafts),
        "accepted": len(tokens[True]) - len(rows[True]),
        "same_tokens": tokens[True] == tokens[False],
    }


@contextlib.contextmanager
def counting(model):
    """A list that gets the number of rows of each forward."""
    rows, forward = [], model.forward

    def counted(segments):
        rows.append(sum(len(ids) for _, ids, _ in segments))
        return forward(segments)

    model.forward = counted
    try:
        yield rows
    finally:
        del model.forward


@contextlib.contextmanager
def replaying(answer, n_prompt: int):
    """Every token is drawn as ever, and then taken from `answer`."""
    sample = generate.sample

    def forced(logits, sampling, history, position):
        sample(logits, sampling, history, position)
        return answer[position - n_prompt]

    generate.sample = forced
    try:
        yield
    finally:
        generate.sample = sample


def unlike_ids(model, new_tokens: int):
    """Arguments of `compare`: prompt and answer of which no id comes twice, and none ends the answer."""
    n_prompt = 128
    n = n_prompt + new_tokens
    usable = [i for i in range(model.info.n_vocab) if i not in model.eos_ids]
    ids = usable[:: max(1, len(usable) // n)][:n]
    return ids[:n_prompt], new_tokens, {"temperature": 0}, ids[n_prompt:], True


def summary(runs) -> dict:
    """The ratio's median and range over the runs; what one of them counted."""
    return {**runs[-1], "ratio": spread([run["ratio"] for run in runs]),
            "same_tokens": all(run["same_tokens"] for run in runs)}  # fmt: skip


def total(rows, ratios) -> dict:
    """All prompts of a kind."""
    counts = {name: sum(row[name] for row in rows) for name in ("tokens", "forwards", "drafted", "accepted")}
    return {
        "kind": rows[0]["kind"],
        "prompt": "all",
        "replayed": rows[0]["replayed"],
        "ratio": spread(ratios),
        **counts,
        "same_tokens": all(row["same_tokens"] for row in rows),
    }


def table(rows) -> str:
    """The rows as Markdown."""
    first = rows[0]
    lines = [
        f"{first['model']}, {first['kernel']}, {first['threads']} threads; decode with speculation, as a "
        "multiple of the speed without",
        "",
        "| answer | prompt | speed-up | range | tokens | forwards | accepted of drafted |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        kind = row["kind"] + (", replayed" if row["replayed"] else "")
        median, low, high = (row["ratio"][name] for name in ("median", "min", "max"))
        lines.append(
            f"| {kind} | {row['prompt']} | {median:.3f} | {low:.3f} to {high:.3f} | "
            f"{row['tokens']} | {row['forwards']} | {row['accepted']} of {row['drafted']} |"
        )
        if not row["same_tokens"]:
            lines.append(f"| **{kind}: other tokens with speculation than without** | | | | | | |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
