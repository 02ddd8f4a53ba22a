"""Conversations and threads: idle time, cancelling, answers left early, ends."""

from __future__ import annotations

import collections
import os
import random
import subprocess
import sys
import threading
import time

import pytest
from conversations import GREEDY, THOUGHT, check_logits, content, next_prompt, quiet

import lite_runtime
from lite_runtime.conversation import Conversation
from lite_runtime.errors import UsageError

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def test_it_settles_in_a_thread(r1, script):
    with Conversation(r1) as conversation:
        script.say(r1, THOUGHT)
        list(conversation.ask("今有雉兔同笼"))
        ids = next_prompt(conversation, "Why?")
        deadline = time.monotonic() + 30
        while True:
            tokens = conversation.session.tokens
            if tokens == ids[: len(tokens)] and len(ids) - len(tokens) <= 5:
                break
            assert time.monotonic() < deadline, "the trimmed answer was not prefilled"
            time.sleep(0.01)


def test_settling_makes_way_at_any_moment(demo, tmp_path):
    """A long history settles chunk by chunk; whatever comes next is exact."""
    rng = random.Random(5)
    long = " ".join(f"{rng.randrange(1000)} sheep" for _ in range(300))
    messages = [{"role": "user", "content": long}, {"role": "assistant", "content": "Yes."}]
    with quiet(demo, messages=messages) as conversation:
        ids = next_prompt(conversation, "Why?")
        with demo.session() as cold:
            expected = [item.token for item in cold.generate(ids, **GREEDY)]
        for action in ("cancel", "save", "ask"):
            conversation.session.cut(0)
            thread = threading.Thread(target=conversation.settle)
            thread.start()
            while len(conversation.session) == 0 and thread.is_alive():
                time.sleep(0.001)
            if action == "cancel":
                conversation.cancel()
                thread.join(10)
                assert 0 < len(conversation.session) < len(ids) - 10, "it was not ended early"
                assert conversation.session.tokens == ids[: len(conversation.session)]
            elif action == "save":
                conversation.save(tmp_path / "c")
            else:
                items = list(conversation.ask("Why?", **GREEDY))
                assert [item.token for item in items] == expected and items[-1].n_cached > 0
            thread.join(10)
            assert not thread.is_alive()
        with Conversation.load(demo, tmp_path / "c", prefill_when_idle=False) as loaded:
            assert 0 < len(loaded.session) < len(ids) - 10
            assert [item.token for item in loaded.ask("Why?", **GREEDY)] == expected
    conversation = quiet(demo, messages=messages)
    thread = threading.Thread(target=conversation.settle)
    thread.start()
    time.sleep(0.01)
    conversation.close()
    thread.join(10)
    assert not thread.is_alive()


def test_the_model_is_closed_amid_idle_time(native_library, demo_nb):
    model = lite_runtime.load(demo_nb)
    conversation = Conversation(model, messages=[{"role": "user", "content": "sheep " * 1500}])
    conversation._settle_in_thread()
    while len(conversation.session) == 0:
        time.sleep(0.001)
    model.close()
    assert len(conversation.session) < 1500
    with pytest.raises(UsageError, match="closed"):
        conversation.ask("x")


_ENDS_AMID_IDLE_TIME = """
import sys, time, lite_runtime
model = lite_runtime.load(sys.argv[1])
messages = [{"role": "user", "content": "sheep " * 5000}, {"role": "assistant", "content": "Yes."}]
conversation = lite_runtime.Conversation(model, messages=messages)
conversation.save(sys.argv[2])
while len(conversation.session) == 0:
    time.sleep(0.001)
print(len(conversation.session), flush=True)
"""


def test_the_program_ends_amid_idle_time(native_library, demo_nb, tmp_path):
    command = [sys.executable, "-c", _ENDS_AMID_IDLE_TIME, str(demo_nb), str(tmp_path / "c")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and int(done.stdout) < 1000


def test_cancel_from_another_thread(tiny, script):
    script.ids = collections.deque(range(1, 60))
    with quiet(tiny) as conversation:
        items = []
        for item in conversation.ask("x", max_new_tokens=50):
            items.append(item)
            if item.n_generated == 5:
                thread = threading.Thread(target=conversation.cancel)
                thread.start()
                thread.join()
        assert (items[-1].finish_reason, items[-1].token, items[-1].n_generated) == ("cancelled", None, 5)
        assert conversation.messages[-1]["content"] == content(items)
        conversation.cancel()  # nothing runs: nothing happens
        script.ids = collections.deque(range(1, 60))
        assert list(conversation.ask("y", max_new_tokens=9))[-1].n_generated == 9
        check_logits(conversation, "z")


def test_cancelled_before_the_first_token_leaves_no_trace(tiny):
    with quiet(tiny) as conversation:
        stream = conversation.ask("x", **GREEDY)
        conversation.cancel()
        (item,) = stream
        assert (item.finish_reason, item.n_generated) == ("cancelled", 0)
        assert conversation.messages == []
        assert list(conversation.ask("x", **GREEDY))[-1].finish_reason == "length"


@pytest.mark.parametrize("stop, reason", [(None, "length"), ("c", "stop")])
def test_a_cancel_that_comes_late_spares_what_comes_next(tiny, monkeypatch, stop, reason):
    said = iter(tiny.text.encode("abcdefghij", bos=False))

    def sample(*_):
        token = next(said)
        if token == tiny.text.encode("c", bos=False)[0]:
            conversation.cancel()  # while the last token is drawn
        return token

    monkeypatch.setattr("lite_runtime.generate.sample", sample)
    with quiet(tiny) as conversation:
        items = list(conversation.ask("x", max_new_tokens=3, stop=stop))
        assert (items[-1].finish_reason, items[-1].n_generated) == (reason, 3)
        n = len(conversation.session)
        conversation.settle()
        assert len(conversation.session) > n
        assert list(conversation.ask("y", max_new_tokens=2))[-1].n_generated == 2


def test_left_early(tiny, script):
    with quiet(tiny) as conversation:
        script.ids = collections.deque(range(1, 60))
        for item in conversation.ask("x", max_new_tokens=50):
            if item.n_generated == 3:
                break
        del item
        assert len(conversation.messages) == 2
        held = conversation.ask("y", max_new_tokens=50)
        next(held)
        script.ids = collections.deque(range(1, 60))
        list(conversation.ask("z", max_new_tokens=3))  # ends it
        assert [m["content"] for m in conversation.messages[::2]] == ["x", "y", "z"]
        never = conversation.ask("never", max_new_tokens=3)
        script.ids = collections.deque(range(1, 60))
        list(conversation.ask("w", max_new_tokens=3))
        assert list(never) == list(held) == []
        assert [m["content"] for m in conversation.messages[::2]] == ["x", "y", "z", "w"]


def test_one_answer_at_a_time(tiny, script, monkeypatch):
    entered, go = threading.Event(), threading.Event()

    def sample(*_):
        entered.set()
        go.wait(20)
        return 5

    monkeypatch.setattr("lite_runtime.generate.sample", sample)
    with quiet(tiny) as conversation:
        thread = threading.Thread(target=lambda: list(conversation.ask("x", max_new_tokens=2)))
        thread.start()
        assert entered.wait(20)
        with pytest.raises(UsageError, match="is answering"):
            conversation.ask("y")
        go.set()
        thread.join(20)
        assert [m["role"] for m in conversation.messages] == ["user", "assistant"]


def test_closed(tiny):
    conversation = Conversation(tiny)
    list(conversation.ask("x", **GREEDY))
    conversation.close()
    conversation.close()
    with pytest.raises(UsageError, match="closed"):
        conversation.ask("y")


def test_everything_at_any_time(tiny, tmp_path):
    """Questions, cancels from another thread, saves and resets amid idle time: every answer is a cold run's
    or a beginning of it, nothing hangs, and no cancel reaches the answer after the one it was meant for."""
    rng, done = random.Random(9), threading.Event()
    calls = {"cancel": threading.Event(), "rest": threading.Event()}

    def cancel_now_and_then():
        while not done.is_set():
            if calls["cancel"].wait(0.01):
                time.sleep(rng.random() * 0.004)
                conversation.cancel()
                calls["cancel"].clear()
                calls["rest"].set()

    conversation = Conversation(tiny, overflow="slide")
    canceller = threading.Thread(target=cancel_now_and_then)
    canceller.start()
    try:
        n_cancelled = 0
        for turn in range(60):
            question, cancelled = "x" * rng.randrange(1, 120), rng.random() < 0.4
            before = list(conversation.messages)
            calls["rest"].clear()
            items = conversation.ask(question, max_new_tokens=20, temperature=1.1, seed=turn)
            if cancelled:
                calls["cancel"].set()
            items = list(items)
            if cancelled:
                assert calls["rest"].wait(20)
            n_cancelled += items[-1].finish_reason == "cancelled"
            assert cancelled or items[-1].finish_reason != "cancelled"
            if len(conversation.messages) == len(before) + 2:
                ids = tiny.text.encode_chat(conversation.messages[:-1])
                with tiny.session() as cold:
                    options = {"max_new_tokens": 20, "temperature": 1.1, "seed": turn}
                    expected = [item.token for item in cold.generate(ids, **options)]
                tokens = [item.token for item in items if item.token is not None]
                assert tokens == (expected[: len(tokens)] if cancelled else expected)
            if rng.random() < 0.3:
                conversation.save(tmp_path / "c")
                with Conversation.load(tiny, tmp_path / "c", prefill_when_idle=False) as loaded:
                    assert loaded.messages == conversation.messages
            if rng.random() < 0.1:
                conversation.reset()
            time.sleep(rng.random() * 0.003)
        assert 0 < n_cancelled < 40
    finally:
        done.set()
        canceller.join(20)
        conversation.close()
