"""Idle time of a batch: the next prompts' beginnings are prefilled while nobody waits, and nobody waits for
them; a cancel that came late stays with the answer that it was meant for."""

from __future__ import annotations

import random
import threading
import time

import pytest
from conversations import THOUGHT, Script

import lite_runtime
from lite_runtime import idle_prefill
from lite_runtime.answer import AnswerReader
from lite_runtime.batching import Batcher
from lite_runtime.conversation import next_beginning, render
from lite_runtime.errors import UsageError
from lite_runtime.idle_prefill import IDLE_CHUNK
from lite_runtime.pool import SessionPool
from lite_runtime.thinking import Tags

LONG = [(7 * i * i + 3 * i) % 300 for i in range(10 * IDLE_CHUNK)]
GREEDY = {"temperature": 0, "max_new_tokens": 4}
LIMIT = 20  # seconds; a test that hangs shall fail


@pytest.fixture(scope="module")
def tiny(native_library, tiny_nb):
    with lite_runtime.load(tiny_nb) as model:
        model.__dict__["eos_ids"] = frozenset()  # random weights would end at random
        yield model


@pytest.fixture
def chunks(tiny, monkeypatch):
    chunks = Chunks(tiny, monkeypatch)
    yield chunks
    chunks.free()


class Chunks:
    """Lets the batcher's idle forwards, those without logits, run when it is told to."""

    def __init__(self, model, monkeypatch):
        self.order = []  # "idle" or "answer" per forward
        self._may, self._at = threading.Semaphore(0), threading.Semaphore(0)
        self._forward = model.forward
        monkeypatch.setattr(model, "forward", self._step, raising=False)

    def _step(self, segments):
        idle = threading.current_thread().name == "batcher" and all(s[2] == "none" for s in segments)
        if idle:
            self._at.release()
            assert self._may.acquire(timeout=LIMIT)
        self.order.append("idle" if idle else "answer")
        return self._forward(segments)

    def wait(self) -> None:
        assert self._at.acquire(timeout=LIMIT), "nothing is prefilled"

    def free(self, n: int = 10000) -> None:
        for _ in range(n):
            self._may.release()


def until(condition) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.001)


def alone(model, prompt, **options) -> list:
    with model.session() as session:
        return [item.token for item in session.generate(prompt, **options)]


def tokens(request) -> list:
    return [item.token for item in request]


def test_the_next_turn_finds_the_trimmed_answer(r1, monkeypatch):
    script = Script()
    monkeypatch.setattr("lite_runtime.generate.sample", script.sample)
    tags, pool = Tags.of_template(r1.text.template_source), SessionPool(r1, 1 << 30)
    messages = [{"role": "user", "content": "今有雉兔同笼"}]
    with Batcher(r1, pool=pool) as batcher:
        prompt = render(r1.text, tags, messages)
        script.say(r1, THOUGHT)
        ids = r1.text.encode(prompt, bos=False)
        items = list(batcher.submit(ids, owner="ann", reader=AnswerReader(prompt, tags)))
        content, reasoning = ("".join(getattr(i, part) for i in items) for part in ("text", "reasoning"))
        messages.append({"role": "assistant", "content": content, "reasoning_content": reasoning})
        beginning = next_beginning(r1.text, tags, messages)
        common = lite_runtime.session.common_prefix(pool._kept[0].session.tokens, beginning)
        batcher.prefill(beginning, "ann")
        until(lambda: pool.n_cached(beginning) == len(beginning))
        assert batcher.stats().idle_tokens == len(beginning) - common > 0
        assert [kept.owner for kept in pool._kept] == ["ann"]
        script.say(r1, "好")
        prompt = render(r1.text, tags, [*messages, {"role": "user", "content": "Why?"}])
        ids = r1.text.encode(prompt, bos=False)
        second = batcher.submit(ids, owner="ann")
        assert list(second)[-1].finish_reason == "stop"
        assert len(beginning) - 1 <= second.n_cached < len(ids)
    pool.close()


def test_no_beginning_where_the_template_refuses(r1, monkeypatch):
    question = {"role": "user", "content": "x"}
    assert next_beginning(r1.text, Tags(), [question]) != []
    monkeypatch.setattr(r1.text, "template_source", "{{ raise_exception('one question') if messages[1] }}")
    monkeypatch.setattr(r1.text, "_template", None)
    with pytest.raises(UsageError, match="one question"):
        render(r1.text, Tags(), [question, question])
    assert next_beginning(r1.text, Tags(), [question]) == []


@pytest.mark.parametrize("owner", ["ann", None])
def test_a_request_waits_for_one_chunk_at_most_and_finds_what_was_done(tiny, pool, chunks, owner):
    with Batcher(tiny, prefill_chunk=len(LONG), pool=pool) as batcher:
        batcher.prefill(LONG, owner)
        for _ in range(3):
            chunks.wait()
            chunks.free(1)
        chunks.wait()
        other = batcher.submit([1, 2], owner="bob", **GREEDY)
        same = batcher.submit([*LONG, 5], owner=owner, **GREEDY)
        chunks.free(1)
        assert tokens(other) == alone(tiny, [1, 2], **GREEDY)
        assert chunks.order[:5] == ["idle"] * 4 + ["answer"]
        assert tokens(same) == alone(tiny, [*LONG, 5], **GREEDY)
        assert same.n_cached == 4 * IDLE_CHUNK and other.n_cached == 0


def test_it_ends_when_the_owners_next_prompt_comes(tiny, pool, chunks):
    with Batcher(tiny, pool=pool) as batcher:
        batcher.prefill(LONG, "ann")
        chunks.wait()
        own = batcher.submit([1, 2], owner="ann", **GREEDY)
        chunks.free()
        assert tokens(own) == alone(tiny, [1, 2], **GREEDY)
        until(lambda: not batcher._idle)
        assert batcher.stats().idle_tokens == IDLE_CHUNK


def test_it_goes_on_when_all_is_quiet_again(tiny, pool, chunks):
    with Batcher(tiny, pool=pool) as batcher:
        batcher.prefill(LONG, "ann")
        chunks.wait()
        other = batcher.submit([1, 2], owner="bob", **GREEDY)
        chunks.free()
        tokens(other)
        until(lambda: not batcher._idle)
        assert batcher.stats().idle_tokens == len(LONG) and pool.n_cached(LONG) == len(LONG)
        batcher.prefill(LONG, "ann")  # there already
        until(lambda: not batcher._idle)
        assert batcher.stats().idle_tokens == len(LONG)
        own = batcher.submit([*LONG, 5], owner="ann", **GREEDY)
        assert tokens(own) == alone(tiny, [*LONG, 5], **GREEDY) and own.n_cached == len(LONG)


def test_the_newest_of_an_owner_counts_and_the_line_is_bounded(tiny, pool, chunks, monkeypatch):
    monkeypatch.setattr(idle_prefill, "MOST_LINED_UP", 3)
    with Batcher(tiny, pool=pool) as batcher:
        batcher.prefill(LONG, "ann")
        chunks.wait()
        batcher.prefill([9] * 70, "ann")
        for k, owner in enumerate(("bob", None, None, "eve")):
            batcher.prefill([20 + k] * 70, owner)
        assert len(batcher._idle._lined_up) == 3
        chunks.free()
        until(lambda: not batcher._idle)
        assert pool.n_cached(LONG) == IDLE_CHUNK  # what had been begun
        assert [pool.n_cached([i] * 70) for i in (9, 20, 21, 22, 23)] == [0, 0, 70, 70, 70]


def test_what_is_not_prefilled(tiny, pool, chunks):
    with Batcher(tiny) as batcher:
        batcher.prefill([1, 2])  # there is no pool
        assert not batcher._idle
    with Batcher(tiny, pool=pool) as batcher:
        batcher.prefill([], "ann")
        batcher.prefill([1] * (tiny.info.n_ctx + 1), "ann")
        with pytest.raises(UsageError, match="token id"):
            batcher.prefill([-1])
        running = batcher.submit([1], owner="ann", max_new_tokens=100000)
        next(iter(running))
        batcher.prefill(LONG, "ann")  # an earlier turn's: the prompt it was meant for has come
        assert not batcher._idle
        running.cancel()
        until(lambda: running.ended)
        batcher.shut_down()
        batcher.prefill(LONG, "ann")
        assert not batcher._idle and chunks.order.count("idle") == 0


def test_closing_ends_the_chunk_that_runs(tiny, pool, monkeypatch):
    """The chunk is cancelled, and the pool's next user does not feel it."""
    began, cancelled = threading.Event(), threading.Event()
    forward = tiny.forward

    def slow(segments):
        began.set()
        handle = segments[0][0]._handle
        until(lambda: handle.n_cancels)  # as long as a chunk may take
        cancelled.set()
        return forward(segments)

    monkeypatch.setattr(tiny, "forward", slow, raising=False)
    batcher = Batcher(tiny, pool=pool)
    batcher.prefill(LONG, "ann")
    assert began.wait(LIMIT)
    batcher.close()
    assert not batcher._worker.is_alive() and cancelled.is_set() and batcher.stats().idle_tokens == 0
    monkeypatch.undo()
    pool.take(LONG, "ann").forward([1])


def test_closing_the_model_amid_it(native_library, tiny_nb):
    model = lite_runtime.load(tiny_nb)
    pool = SessionPool(model, 1 << 30)
    batcher = Batcher(model, pool=pool)
    batcher.prefill([1] * model.info.n_ctx, "ann")
    until(lambda: batcher.stats().idle_tokens)
    model.close()
    until(lambda: not batcher._idle)
    batcher.close()
    pool.close()


def test_a_cancel_while_leaving_spares_the_next_user(tiny, pool, monkeypatch):
    """Whoever holds a session may cancel it when its answer ends already; owners come and go meanwhile."""
    give, rng = pool.give, random.Random(3)

    def cancelled_before(session, owner=None):
        session.cancel()
        give(session, owner)

    monkeypatch.setattr(pool, "give", cancelled_before)
    with Batcher(tiny, max_batch=3, pool=pool) as batcher:
        for turn in range(4):
            prompts = {owner: [*LONG[:130], k, *[7] * turn] for k, owner in enumerate("abcd")}
            requests = {o: batcher.submit(prompt, owner=o, **GREEDY) for o, prompt in prompts.items()}
            gone = rng.choice("abcd")
            requests[gone].cancel()
            for owner, request in requests.items():
                answer = tokens(request)
                assert owner == gone or answer == alone(tiny, prompts[owner], **GREEDY)
    for owner in "abcd":
        session = pool.take([*LONG[:130], 99], owner)
        assert len(session) == 130
        session.forward([99])  # no CancelledError
        session.close()


def test_a_closed_session_is_not_kept(tiny, pool):
    session = tiny.session()
    session.forward([1, 2])
    session.close()
    pool.give(session, "ann")
    assert len(pool) == 0
    assert pool.take([1, 2, 3], "ann").forward([1]).shape == (1, tiny.info.n_vocab)


def test_owners_that_talk_and_rest(tiny, pool):
    """Threads that ask, leave, and line up what they may ask next."""
    options = {"temperature": 1.3, "max_new_tokens": 6}
    problems = []

    def client(number):
        chance, history = random.Random(number), [number, *LONG[:100]]
        try:
            for turn in range(12):
                prompt = [*history, turn]
                request = batcher.submit(prompt, owner=number, seed=turn, **options)
                if chance.random() < 0.2:
                    request.cancel()
                answer = [token for token in tokens(request) if token is not None]
                wanted = alone(tiny, prompt, seed=turn, **options)
                assert answer == wanted[: len(answer)]
                assert request.finish_reason == "cancelled" or answer == wanted
                history = [*history, turn, *answer[-2:]]  # what came before these was dropped
                batcher.prefill(history, number)
                time.sleep(chance.random() * 0.004)
        except BaseException as problem:
            problems.append(problem)

    with Batcher(tiny, max_batch=3, prefill_chunk=20, pool=pool) as batcher:
        threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems, problems[0]
        assert sum(batcher.stats().ended.values()) == 72
