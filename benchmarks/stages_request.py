"""One conversation of two turns in a fresh process, each turn timed stage by stage.

    python -m benchmarks.stages_request FILE.nb THREADS NEW_TOKENS

A child of `stages.py`; prints JSON: what opening took, then a cold and a warm conversation.
"""

from __future__ import annotations

import array
import json
import sys
import time

_BEGAN = time.perf_counter()

import lite_runtime  # noqa: E402
from lite_runtime.errors import EdgeKitError, UsageError, whole_number  # noqa: E402
from lite_runtime.generate import make_sampling, sample  # noqa: E402

STAGES = ("parse", "encode", "model", "text")
SYSTEM = "You are a careful assistant. You answer in plain words, and you say so when you do not know."
QUESTIONS = (
    "I keep a small weather station on my roof, which writes temperature, pressure and humidity to a file "
    "every minute. Over the last week the pressure has fallen by twelve hectopascals while the temperature "
    "hardly moved. What does that tell me about the coming days, and which of the three should I watch most?",
    "Thank you. Now write that as three short rules that I can pin to the wall beside the instrument.",
)


def request_body(history: list, new_tokens: int) -> bytes:
    """What a client would send."""
    return json.dumps({"messages": history, "max_tokens": new_tokens, "temperature": 0}).encode()


def parse_request(body: bytes):
    """(messages, max_tokens, temperature) of a request; UsageError for anything else."""
    try:
        request = json.loads(body)
    except ValueError as error:
        raise UsageError(f"the request is no JSON: {error}") from None
    messages = request.get("messages") if isinstance(request, dict) else None
    if not isinstance(messages, list) or not messages:
        raise UsageError('the request has no "messages", expected a list of {"role", "content"}')
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ("system", "user", "assistant"):
            raise UsageError(f"message {message!r}, expected a role: system, user or assistant")
        if not isinstance(message.get("content"), str):
            raise UsageError(f"message {message!r}, expected a content that is a text")
    max_tokens = whole_number("max_tokens", request.get("max_tokens"), 1, 2**31 - 1)
    return messages, max_tokens, request.get("temperature")


def answer(model, session, body: bytes):
    """(text, figures) of one request: milliseconds by stage, to the first token and in all.

    The cache keeps what the conversation has in common with it. The answer does not end at an end token, so
    that every run does the same work.
    """
    clock = time.perf_counter
    spent = dict.fromkeys(STAGES, 0.0)
    began = now = clock()

    def charge(stage):
        nonlocal now
        before, now = now, clock()
        spent[stage] += now - before

    messages, max_tokens, temperature = parse_request(body)
    charge("parse")
    ids = model.text.encode_chat(messages)
    charge("encode")
    reused = session.reuse(ids)
    sampling = make_sampling({}, temperature, None, None, None, None, seed=0)
    step, tokens, parts, first = ids[reused:], array.array("i", ids), [], None
    detokenizer = None
    for _ in range(max_tokens):
        (logits,) = model.forward([(session, step, "last")])
        step = [sample(logits, sampling, tokens, len(session))]
        tokens.extend(step)
        charge("model")
        detokenizer = detokenizer or model.text.detokenizer()
        parts.append(detokenizer.add(step[0]))
        charge("text")
        first = first or now - began
    figures = {stage: 1e3 * seconds for stage, seconds in spent.items()}
    figures.update(first_token=1e3 * first, total=1e3 * (now - began))
    return "".join(parts), {"ms": figures, "prompt_tokens": len(ids), "reused_tokens": reused}


def conversation(model, new_tokens: int) -> list:
    """The figures of two turns in a session of their own."""
    history, turns = [{"role": "system", "content": SYSTEM}], []
    with model.session() as session:
        for question in QUESTIONS:
            history.append({"role": "user", "content": question})
            text, figures = answer(model, session, request_body(history, new_tokens))
            history.append({"role": "assistant", "content": text})
            turns.append(figures)
    return turns


def main(path: str, threads: str, new_tokens: str) -> int:
    imported = time.perf_counter()
    try:
        with lite_runtime.load(path, n_threads=int(threads)) as model:
            opened = time.perf_counter()
            report = {
                "import_ms": 1e3 * (imported - _BEGAN),
                "open_ms": 1e3 * (opened - imported),
                "cold": conversation(model, int(new_tokens)),
                "warm": conversation(model, int(new_tokens)),
                "kernel": model.info.isa,
                "threads": model.info.n_threads,
            }
    except EdgeKitError as error:
        print(json.dumps({"error": str(error)}))
        return 2
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
