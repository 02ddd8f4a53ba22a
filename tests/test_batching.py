"""Continuous batching: a request gets the answer it would get alone, whatever joins, leaves or fails."""

from __future__ import annotations

import contextlib
import gc
import random
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from exported import ROOT

import lite_runtime
from lite_runtime.answer import AnswerReader
from lite_runtime.batching import Batcher
from lite_runtime.conversation import Conversation
from lite_runtime.errors import ContextFullError, EdgeKitError, QueueFullError, ShuttingDownError, UsageError
from lite_runtime.pool import SessionPool
from lite_runtime.thinking import Tags

PROMPTS = [[(7 * i * i + 3 * i + k) % 300 for i in range(n)] for k, n in enumerate((5, 70, 1, 130, 33))]
SAMPLED = {"temperature": 1.5, "top_p": 0.95, "repetition_penalty": 1.1, "max_new_tokens": 12}


@pytest.fixture(scope="module", params=["f16", "int8"])
def tiny(request, native_library, tiny_nb):
    with lite_runtime.load(tiny_nb, kv_dtype=request.param) as model:
        model.__dict__["eos_ids"] = frozenset()  # random weights would end at random
        yield model


def test_what_is_exported_needs_no_extra(native_library):
    code = "import sys; from lite_runtime import *; print(Batcher.__name__, 'llguidance' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "Batcher False\n"), done.stderr
    assert {"Batcher", "Constraint", "AnswerReader"} <= set(lite_runtime.__all__)


def until(condition) -> None:
    deadline = time.monotonic() + 9
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.001)


class Steps:
    """Runs a batcher's forwards when it is told to."""

    def __init__(self, model, monkeypatch):
        self.seen = []  # per forward: {session: (rows, logits asked for)}
        self._may = threading.Semaphore(0)
        self._forward = model.forward
        self._at = threading.Event()
        monkeypatch.setattr(model, "forward", self._step, raising=False)

    def _step(self, segments):
        if threading.current_thread().name != "batcher":
            return self._forward(segments)
        self._at.set()
        self._may.acquire(timeout=10)  # a test that failed shall end
        self._at.clear()
        self.seen.append({session: (len(ids), logits) for session, ids, logits in segments})
        return self._forward(segments)

    def run(self, batcher, n: int) -> None:
        done = batcher.stats().steps + n
        for _ in range(n):
            self._may.release()
        until(lambda: batcher.stats().steps == done)

    def wait(self) -> None:
        """Until a forward is about to run."""
        assert self._at.wait(9)

    def free(self) -> None:
        for _ in range(10000):
            self._may.release()


@pytest.fixture
def steps(tiny, monkeypatch):
    steps = Steps(tiny, monkeypatch)
    yield steps
    steps.free()


def alone(model, prompt, **options) -> list:
    with model.session() as session:
        items = session.generate(prompt, **options)
        return [(item.token, item.text, item.finish_reason, item.logprobs) for item in items]


def taken(request) -> list:
    return [(item.token, item.text, item.finish_reason, item.logprobs) for item in request]


@pytest.mark.parametrize("options", [{"temperature": 0, "max_new_tokens": 12}, {**SAMPLED, "logprobs": 2}])
def test_a_batch_answers_as_single_runs(tiny, options):
    wanted = [alone(tiny, prompt, seed=k, **options) for k, prompt in enumerate(PROMPTS)]
    for max_batch, chunk in ((8, 64), (3, 7), (1, 1)):
        with Batcher(tiny, max_batch, chunk) as batcher:
            requests = [batcher.submit(prompt, seed=k, **options) for k, prompt in enumerate(PROMPTS)]
            assert [taken(request) for request in requests] == wanted
        stats = batcher.stats()
        assert stats.ended == {"length": 5} and stats.running == stats.waiting == 0
        assert stats.generated_tokens == 60 and stats.prompt_tokens == sum(map(len, PROMPTS))
        assert max(stats.batch_sizes) == min(max_batch, 5)
        assert [request.n_generated for request in requests] == [12] * 5
        assert all(r.submitted < r.started < r.first_token < r.ended for r in requests)


def test_the_demo_answers_as_alone(demo):
    questions = ["What is the capital of France?", "Write a haiku about rain.", "你好！🐔"]
    prompts = [demo.text.encode_chat([{"role": "user", "content": text}]) for text in questions]
    options = [{"temperature": 0}, {"temperature": 0.8, "seed": 3}, {"temperature": 1.2, "top_k": 50}]
    wanted = [alone(demo, p, max_new_tokens=24, **o) for p, o in zip(prompts, options)]
    with Batcher(demo) as batcher:
        requests = [batcher.submit(p, max_new_tokens=24, **o) for p, o in zip(prompts, options)]
        assert [taken(request) for request in requests] == wanted


@pytest.mark.parametrize("n", range(0, 10, 3))
def test_joining_and_leaving_at_every_step(tiny, steps, n):
    """One long answer; behind each of its steps another request joins, and leaves after n + 1 tokens."""
    wanted = alone(tiny, PROMPTS[0], **SAMPLED)
    others = [PROMPTS[k % 5][: 20 + k] for k in range(9)]
    options = {**SAMPLED, "max_new_tokens": n + 1}
    wanted_others = [alone(tiny, prompt, seed=k, **options) for k, prompt in enumerate(others)]
    with Batcher(tiny, max_batch=16) as batcher:
        first = batcher.submit(PROMPTS[0], **SAMPLED)
        joined = []
        for k, prompt in enumerate(others):
            steps.run(batcher, 1)
            steps.wait()
            joined.append(batcher.submit(prompt, seed=k, **options))
        steps.free()
        assert taken(first) == wanted
        assert [taken(request) for request in joined] == wanted_others


def test_prompts_come_in_pieces_and_answers_keep_flowing(tiny, steps):
    with Batcher(tiny, max_batch=4, prefill_chunk=16) as batcher:
        answering = batcher.submit([1], max_new_tokens=200)
        steps.run(batcher, 1)
        steps.wait()
        long = batcher.submit(PROMPTS[3], max_new_tokens=2)
        steps.run(batcher, 1)
        steps.wait()
        short = batcher.submit(PROMPTS[0], max_new_tokens=2)
        before = len(steps.seen)
        steps.run(batcher, 12)
        for step in steps.seen[before:]:
            assert step[answering._session] == (1, "last")
            assert sum(rows for rows, _ in step.values() if rows > 1) <= 16
        assert len(steps.seen[before + 1]) == 3 and short.first_token < long.first_token
        assert batcher.stats().prefilling == 0
        answering.cancel()
        steps.free()
        assert taken(short) == alone(tiny, PROMPTS[0], max_new_tokens=2)
        assert taken(long) == alone(tiny, PROMPTS[3], max_new_tokens=2)


@pytest.mark.parametrize("phase", ["waiting", "before the prompt", "in the prompt", "answering"])
@pytest.mark.parametrize("how", ["cancel", "timeout", "session"])
def test_an_end_from_outside_in_every_phase(tiny, steps, phase, how):
    wanted = alone(tiny, PROMPTS[1], **SAMPLED)
    with (
        Batcher(tiny, max_batch=1 if phase == "waiting" else 2, prefill_chunk=32) as batcher,
        tiny.session() as s,
    ):
        other = batcher.submit(PROMPTS[1], **SAMPLED)
        steps.wait()
        timeout = 0.2 if how == "timeout" else None
        request = batcher.submit(PROMPTS[3], session=s, max_new_tokens=50, timeout=timeout)
        n_steps = {"waiting": 1, "before the prompt": 1, "in the prompt": 3, "answering": 11}[phase]
        if how != "timeout":
            steps.run(batcher, n_steps)
            steps.wait()  # it ends while a forward runs
            request.cancel() if how == "cancel" else s.cancel()
        else:
            steps.run(batcher, n_steps) if phase != "waiting" else None
            time.sleep(0.25)
        steps.free() if how == "session" else steps.run(batcher, 2)
        until(lambda: request.ended)
        items = list(request)
        assert items[-1].finish_reason == request.finish_reason == "cancelled" and items[-1].token is None
        assert request.timed_out == (how == "timeout")
        assert (request.first_token is not None) == (phase == "answering")
        assert request not in batcher._running and batcher.stats().ended["cancelled"] == 1
        steps.free()
        assert taken(other) == wanted
        (item,) = s.generate([1], max_new_tokens=1)  # the session is its owner's again
        assert item.finish_reason == "length"


def test_a_context_manager_cancels(tiny):
    with Batcher(tiny) as batcher:
        with batcher.submit([1], max_new_tokens=100000) as request:
            next(iter(request))
        until(lambda: request.ended)
        assert request.finish_reason == "cancelled" and batcher.stats().running == 0


def test_a_full_queue(tiny, steps):
    with Batcher(tiny, max_batch=1, max_queue=2) as batcher:
        requests = [batcher.submit([k], max_new_tokens=2) for k in range(3)]
        for _ in range(2):
            steps.wait()
            with pytest.raises(QueueFullError, match="1 requests run and 2 wait, 2 may wait") as refused:
                batcher.submit([9])
            assert 0 < refused.value.retry_after < 60
            steps.run(batcher, 2)
            requests.append(batcher.submit([9], max_new_tokens=2))
        assert batcher.stats().ended == {"refused": 2, "length": 2}
        assert batcher.stats().waiting == 2
        steps.free()
        assert [taken(request)[-1][2] for request in requests] == ["length"] * 5


class Breaks:
    """A constraint that fails at the third token."""

    complete = False

    def __init__(self):
        self._n = 0

    def begin(self):
        return Breaks()

    def mask(self, logits):
        return logits

    def accept(self, _token):
        self._n += 1
        if self._n == 3:
            raise EdgeKitError("no third token")


def test_one_request_fails_alone(tiny, steps):
    wanted = alone(tiny, PROMPTS[1], **SAMPLED)

    def refuse(_item):
        raise ValueError("the listener is gone")

    with Batcher(tiny) as batcher, tiny.session() as closed:
        sound = batcher.submit(PROMPTS[1], **SAMPLED)
        broken = batcher.submit(PROMPTS[0], constraint=Breaks())
        unheard = batcher.submit(PROMPTS[0], on_item=refuse)
        lost = batcher.submit(PROMPTS[4], session=closed)
        steps.run(batcher, 3)
        steps.wait()
        closed.close()
        steps.free()
        assert taken(sound) == wanted
        with pytest.raises(EdgeKitError, match="no third token"):
            list(broken)
        assert broken.n_generated == 3 and str(broken.error) == "no third token"
        with pytest.raises((UsageError, EdgeKitError)):
            list(lost)
        until(lambda: unheard.ended)
        assert isinstance(unheard.error, ValueError) and unheard.n_generated == 1
        with pytest.raises(UsageError, match="go to its on_item"):
            list(unheard)
        assert taken(batcher.submit(PROMPTS[1], **SAMPLED)) == wanted
        assert batcher.stats().ended == {"length": 2, "error": 3} or lost.finish_reason == "cancelled"


def test_a_request_that_has_ended_does_not_wait_for_the_collector(tiny):
    def listened(batcher):
        held = []
        held.append(batcher.submit(PROMPTS[0], max_new_tokens=2, on_item=lambda _item: held))
        until(lambda: held[0].ended)
        return weakref.ref(held[0])

    with Batcher(tiny) as batcher:
        gc.disable()
        try:
            request = listened(batcher)
            until(lambda: request() is None)  # the worker lets go of it behind its step
        finally:
            gc.enable()


def test_what_is_refused_at_once(tiny, steps):
    with (
        Batcher(tiny, max_batch=2) as batcher,
        tiny.session() as session,
        lite_runtime.load(tiny.path) as other,
    ):
        for options, problem in (
            ({"session": other.session()}, "expected a session of the batcher's model"),
            ({"session": 3}, "expected a session"),
            ({"reader": "x"}, "expected an AnswerReader"),
            ({"timeout": 0}, "timeout 0, expected seconds"),
            ({"timeout": float("nan")}, "timeout nan"),
            ({"temperature": -1}, "temperature -1"),
            ({"logit_bias": [1]}, "logit_bias"),
            ({"constraint": "x"}, "constraint 'x'"),
        ):
            with pytest.raises(UsageError, match=problem):
                batcher.submit([1], **options)
        with pytest.raises(UsageError, match="an empty prompt"):
            batcher.submit([])
        with pytest.raises(ContextFullError, match="the limit is"):
            batcher.submit([1] * (tiny.info.n_ctx + 1))
        batcher.submit([1], session=session, max_new_tokens=3)
        with pytest.raises(UsageError, match="in use by another request"):
            batcher.submit([1], session=session)
        steps.free()
    for wrong in ({"max_batch": 0}, {"prefill_chunk": 0}, {"max_queue": -1}):
        with pytest.raises(UsageError, match=f"{next(iter(wrong))} "):
            Batcher(tiny, **wrong)


def test_shutting_down(tiny, steps):
    batcher = Batcher(tiny, max_batch=1)
    running, waiting = (batcher.submit(PROMPTS[0], **SAMPLED) for _ in range(2))
    steps.run(batcher, 2)
    batcher.shut_down()
    with pytest.raises(ShuttingDownError, match="before this request's turn"):
        list(waiting)
    with pytest.raises(ShuttingDownError, match="no more answers"):
        batcher.submit([1])
    steps.free()
    batcher.close()
    batcher.close()
    assert taken(running) == alone(tiny, PROMPTS[0], **SAMPLED)
    assert batcher.stats().ended == {"shutdown": 1, "length": 1}


def test_closing_with_a_limit_cancels_what_still_runs(tiny):
    batcher = Batcher(tiny)
    request = batcher.submit([1], max_new_tokens=100000)
    next(iter(request))
    batcher.close(timeout=0.05)
    assert request.finish_reason == "cancelled" and not batcher._worker.is_alive()


def test_closing_the_model_ends_everything(tiny_nb, native_library):
    model = lite_runtime.load(tiny_nb)
    model.__dict__["eos_ids"] = frozenset()
    batcher = Batcher(model)
    request = batcher.submit([1], max_new_tokens=100000)
    next(iter(request))
    model.close()
    until(lambda: request.ended)
    assert request.finish_reason == "cancelled" or "closed" in str(request.error)
    with pytest.raises(EdgeKitError, match="closed"):
        list(batcher.submit([1]))
    batcher.close()


def test_a_session_of_the_callers(tiny):
    with Batcher(tiny) as batcher, tiny.session() as batched, tiny.session() as single:
        for prompt in PROMPTS[:3]:
            wanted = [item.token for item in single.generate(prompt, **SAMPLED)]
            assert [item.token for item in batcher.submit(prompt, session=batched, **SAMPLED)] == wanted
            assert batched.tokens == single.tokens
        np.testing.assert_array_equal(batched.forward([5]), single.forward([5]))


def test_sessions_of_a_pool(tiny):
    pool = SessionPool(tiny, 1 << 30)
    with Batcher(tiny, pool=pool) as batcher:
        system = PROMPTS[3]
        first = batcher.submit(system + [1], owner="a", **SAMPLED)
        answer = [item.token for item in first]
        assert first.n_cached == 0 and answer == [t for t, *_ in alone(tiny, system + [1], **SAMPLED)]
        second_prompt = system + [1] + answer + [2]
        second = batcher.submit(second_prompt, owner="a", **SAMPLED)
        assert taken(second) == alone(tiny, second_prompt, **SAMPLED)
        other = batcher.submit(system + [7], owner="b", **SAMPLED)
        assert taken(other) == alone(tiny, system + [7], **SAMPLED)
        assert second.n_cached == len(second_prompt) - 2 and other.n_cached == len(system)
        assert batcher.stats().cached_tokens == second.n_cached + other.n_cached
    assert len(pool) == 2
    pool.close()


def test_a_prompt_is_shared_while_its_answer_runs(tiny, steps):
    pool = SessionPool(tiny, 1 << 30)
    with Batcher(tiny, pool=pool, prefill_chunk=200) as batcher:
        first = batcher.submit(PROMPTS[3], **SAMPLED)
        steps.run(batcher, 1)
        second = batcher.submit(PROMPTS[3], owner="b", **SAMPLED)
        steps.free()
        assert taken(first) == taken(second) == alone(tiny, PROMPTS[3], **SAMPLED)
        assert second.n_cached == len(PROMPTS[3]) - 1
    pool.close()


def test_repetition_and_stop_strings(tiny):
    options = {"temperature": 0, "max_new_tokens": 300, "logit_bias": {65: 100}}
    with Batcher(tiny) as batcher:
        *_, last = batcher.submit([1], stop_at_repetition=True, **options)
        assert last.finish_reason == "repetition" and last.n_generated == 96
        *_, last = batcher.submit([1], **options)
        assert last.finish_reason == "length" and last.n_generated == 300
        whole = "".join(text for _, text, *_ in alone(tiny, [1], **{**SAMPLED, "max_new_tokens": 60}))
        stopped = {**SAMPLED, "max_new_tokens": 60, "stop": whole[10:16]}
        request = batcher.submit([1], **stopped)
        items = taken(request)
        assert items == alone(tiny, [1], **stopped) and items[-1][2] == "stop"
        assert "".join(text for _, text, *_ in items) == whole[: whole.index(whole[10:16])]


@pytest.mark.parametrize("budget, n_most", [(None, 20), (5, 20), (0, 20), (19, 20), (20, 20)])
def test_reasoning_and_its_budget_as_in_a_conversation(r1, budget, n_most):
    options = {"temperature": 1.3, "seed": 11, "max_new_tokens": n_most}
    with Conversation(r1, thinking_budget=budget, prefill_when_idle=False) as conversation:
        wanted = list(conversation.ask("Count", **options))
    tags = Tags.of_template(r1.text.template_source)
    closing = r1.text.encode(tags.closing, bos=False)
    prompt = r1.text.render([{"role": "user", "content": "Count"}])
    ids = r1.text.encode(prompt, bos=False)
    reader = AnswerReader(prompt, tags, budget)
    if reader.over_budget:
        ids += closing
        reader.closed()
    with Batcher(r1) as batcher:
        others = [batcher.submit(ids[:k], max_new_tokens=9) for k in (2, 5)]
        items = list(batcher.submit(ids, reader=reader, closing=closing, **options))
        for other in others:
            list(other)
    assert [(i.reasoning, i.text, i.token, i.finish_reason, i.cut_in) for i in items] == [
        (i.reasoning, i.content, i.token, i.finish_reason, i.cut_in) for i in wanted
    ]


def test_eight_clients(tiny):
    """Threads that submit, take, cancel and leave as they like."""
    limit = {**SAMPLED, "max_new_tokens": 10}
    wanted = {(k, seed): alone(tiny, PROMPTS[k], seed=seed, **limit) for k in range(5) for seed in range(3)}
    problems = []

    def client(number):
        chance = random.Random(number)
        try:
            for _ in range(12):
                k, seed = chance.randrange(5), chance.randrange(3)
                request = batcher.submit(PROMPTS[k], seed=seed, **limit)
                if chance.random() < 0.3:
                    time.sleep(chance.random() * 0.01)
                    request.cancel()
                items = taken(request)
                if items[-1][2] == "cancelled":
                    assert items[:-1] == wanted[k, seed][: len(items) - 1]
                else:
                    assert items == wanted[k, seed]
        except BaseException as problem:
            problems.append(problem)

    with Batcher(tiny, max_batch=5, prefill_chunk=20, pool=SessionPool(tiny, 1 << 22)) as batcher:
        threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems, problems[0]
        assert sum(batcher.stats().ended.values()) == 96
    batcher._pool.close()


def test_a_fault_of_the_worker_leaves_nobody_waiting(tiny, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _arguments: None)
    batcher = Batcher(tiny)
    monkeypatch.setattr(batcher, "_inputs", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(batcher.submit([1]))
    with pytest.raises(ShuttingDownError):
        batcher.submit([1])
    batcher.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_the_batch_ends_all_requests_and_is_told(tiny, monkeypatch):
    batcher = Batcher(tiny, max_batch=1)
    fault = RuntimeError("a fault")

    def fail():
        raise fault

    monkeypatch.setattr(batcher, "_step", fail)
    requests = []
    for _ in range(3):
        with contextlib.suppress(ShuttingDownError):
            requests.append(batcher.submit([1, 2], max_new_tokens=4))
    for request in requests:
        with pytest.raises((RuntimeError, ShuttingDownError)):
            list(request)
    until(lambda: batcher.error is fault)
    batcher.close()
