"""Turn after turn over HTTP: what the next prompt finds in the caches, and sessions apart from each other."""

from __future__ import annotations

import json
import time

import pytest
from serving import serve, until

import lite_runtime
from lite_runtime.conversation import Conversation

pytest.importorskip("fastapi", reason="needs the serve extra")

QUESTIONS = ["How many primes are there below 20? " + "Think well. " * 20, "And below 30?", "谢谢 🐔"]
OPTIONS = {"max_new_tokens": 40, "temperature": 0}


@pytest.fixture(scope="module")
def r1(native_library, r1_nb):
    """A model that thinks, and whose template drops the reasoning of earlier turns."""
    with serve(r1_nb, "--n-ctx", 2000, "--thinking-budget", 10) as served:
        yield served


def ask(served, messages, session=None) -> dict:
    headers = {} if session is None else {"X-Session-Id": session}
    status, answer, _ = served.post("/generate", {"messages": messages, **OPTIONS}, **headers)
    assert status == 200, answer
    return answer


def message_of(answer) -> dict:
    return {"role": "assistant", "content": answer["text"], "reasoning_content": answer["reasoning"]}


def test_turns_are_answered_as_by_a_conversation(r1, r1_nb):
    with (
        lite_runtime.load(r1_nb, n_ctx=2000) as model,
        Conversation(model, thinking_budget=10) as conversation,
    ):
        messages = []
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            answer = ask(r1, messages, "like-python")
            items = list(conversation.ask(question, **OPTIONS))
            assert answer["text"] == "".join(item.content for item in items)
            assert answer["reasoning"] == "".join(item.reasoning for item in items) != ""
            assert answer["reasoning_tokens"] == 10 and answer["finish_reason"] == items[-1].finish_reason
            messages.append(message_of(answer))


@pytest.mark.parametrize("session", ["one", None])
@pytest.mark.parametrize("returned", ["content", "reasoning too"])
def test_the_moved_answer_is_computed_before_it_is_asked_for(r1, session, returned):
    """Most clients send no reasoning back; that one does is known from its second turn on."""
    messages = []
    for n_turn in range(3):
        question = f"{returned}, {session}: {QUESTIONS[0]}" if n_turn == 0 else "And?"
        messages.append({"role": "user", "content": question})
        before = r1.metrics()["edge_kit_idle_tokens_total"]
        answer = ask(r1, messages, session)
        assert answer["text"]
        if n_turn == 2 or (n_turn == 1 and returned == "content"):
            # Not cached: the new question and the prompt for an answer.
            assert answer["prompt_tokens"] - answer["cached_tokens"] < 12
        message = message_of(answer)
        if returned == "content":
            del message["reasoning_content"]
        messages.append(message)
        until(lambda before=before: r1.metrics()["edge_kit_idle_tokens_total"] > before)
        settle(r1)


def settle(served) -> None:
    """Waits until the server computes nothing any more."""
    last = None
    while last != served.metrics()["edge_kit_idle_tokens_total"]:
        last = served.metrics()["edge_kit_idle_tokens_total"]
        time.sleep(0.2)


def test_chat_events_tell_reasoning_apart_and_the_tokens_at_the_end(r1):
    import urllib.request

    body = json.dumps({"messages": [{"role": "user", "content": "你好 🐔"}], **OPTIONS}).encode()
    request = urllib.request.Request(r1.url + "/chat", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        lines = [line for line in response.read().decode().split("\n") if line]
    events = [json.loads(line[6:]) for line in lines]
    assert all(line.startswith("data: ") for line in lines)
    assert [event for event in events if "finish_reason" in event] == events[-1:]
    whole = ask(r1, [{"role": "user", "content": "你好 🐔"}])
    assert "".join(event["reasoning"] for event in events) == whole["reasoning"]
    assert "".join(event["content"] for event in events) == whole["text"]
    assert "\ufffd" not in json.dumps(events, ensure_ascii=False)
    assert events[-1]["generated_tokens"] == whole["generated_tokens"]


def test_generate_tells_where_the_time_went(r1):
    answer = ask(r1, [{"role": "user", "content": "Times, please."}])
    stages = answer["stages"]
    assert stages.keys() == {"encode", "queue", "prefill", "decode", "total"}
    parts = [stages[name] for name in ("encode", "queue", "prefill", "decode")]
    assert all(part > 0 for part in parts) and sum(parts) < stages["total"]
    assert answer["cpu_seconds"] > 0 and answer["cpus"] > 0
    assert 0 < answer["rss_bytes"] <= answer["peak_rss_bytes"]


def test_generate_takes_a_prompt_as_it_is(r1, r1_nb):
    with lite_runtime.load(r1_nb) as model, model.session() as session:
        wanted = "".join(item.text for item in session.generate("As it is", max_new_tokens=6, temperature=0))
    body = {"prompt": "As it is", "max_new_tokens": 6, "temperature": 0}
    assert r1.post("/generate", body)[1]["text"] == wanted
    for wrong in (
        {},
        {**body, "messages": [{"role": "user", "content": "x"}]},
        {**body, "thinking_budget": 3},
    ):
        status, answer, _ = r1.post("/generate", wrong)
        assert status == 400 and "messages" in answer["error"]["message"]
