"""Greedy answers of models as JSON, with the kernel path that computed them: `greedy_answers.py FILE...`."""

from __future__ import annotations

import json
import sys

import lite_runtime

# Emulated, each token of the demo model takes a second: one question for each type of the cache.
QUESTIONS = {"f16": "What is the capital of France?", "int8": "1 + 1 = ? 你好 👋"}
MOST_TOKENS = 12


def greedy_answers(path: str) -> dict:
    """{"isa": …, "answers": [{"kv_dtype", "tokens", "text"}, …]}"""
    isa, answers = "", []
    for kv_dtype, question in QUESTIONS.items():
        with lite_runtime.load(path, kv_dtype=kv_dtype) as model, model.session() as session:
            isa = model.info.isa
            ids = model.text.encode_chat([{"role": "user", "content": question}])
            items = list(session.generate(ids, max_new_tokens=MOST_TOKENS, temperature=0))
        text = "".join(item.text for item in items)
        answers.append({"kv_dtype": kv_dtype, "tokens": [item.token for item in items], "text": text})
    return {"isa": isa, "answers": answers}


if __name__ == "__main__":
    print(json.dumps({path: greedy_answers(path) for path in sys.argv[1:]}))
