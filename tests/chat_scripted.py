"""`edge-kit chat` whose model says given texts: chat_scripted.py SECONDS_PER_TOKEN TEXT[|TEXT…] FILE …

All else is real: the logits are computed, and the texts' tokens are taken instead of sampled ones. A text
that ends in … never ends: its last word is said again and again.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import lite_runtime.generate  # noqa: E402
from edge_kit.cli import main  # noqa: E402


def ids_of(answers: list, path: str):
    """Tokens of all answers, one after the other."""
    with lite_runtime.load(path) as model:
        text, end = model.text, min(model.eos_ids)
    for answer in answers:
        said = answer.rstrip("…")
        yield from text.encode(said, bos=False)
        if said != answer:
            yield from itertools.cycle(text.encode(" " + said.split()[-1], bos=False))
        yield end


def run(seconds: float, answers: list, arguments: list) -> int:
    ids = ids_of(answers, arguments[0])

    def sample(_logits, _sampling, _history, _position) -> int:
        time.sleep(seconds)
        return next(ids)

    lite_runtime.generate.sample = sample
    return main(["chat", *arguments, "--no-speculate"])


if __name__ == "__main__":
    sys.exit(run(float(sys.argv[1]), sys.argv[2].split("|"), sys.argv[3:]))
