"""Speculation: the same answer and the same session at every moment, with fewer forwards."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

import lite_runtime
from benchmarks import speculation as benchmark
from edge_kit.cli import main
from lite_runtime import generate, speculation
from lite_runtime.errors import UsageError
from lite_runtime.speculation import Drafter, NGramIndex, RowCost, Speculation

PROMPT = [72, 101, 108, 108, 111]


@pytest.fixture(scope="module")
def loaded(native_library, tiny_nb):
    with lite_runtime.load(tiny_nb, n_threads=1) as model:
        yield model


@pytest.fixture
def tiny(loaded):
    loaded.__dict__["eos_ids"] = frozenset()  # random weights would end at random
    yield loaded
    loaded.__dict__.pop("forward", None)


@pytest.fixture
def oracle(tiny, monkeypatch):
    """oracle(answer, wrong): drafts are the answer's next tokens, spoilt at the places `wrong`."""

    def install(answer, wrong=()):
        def propose(drafter, most, row_cost):
            assert most >= 0
            at = len(drafter._index.ids) - len(PROMPT)
            spoilt = [at + i in wrong for i in range(7)]
            draft = [(token + by) % tiny.info.n_vocab for token, by in zip(answer[at:], spoilt)]
            return draft[:most]

        monkeypatch.setattr(Drafter, "propose", propose)

    return install


@pytest.fixture
def fixed_cost(monkeypatch):
    """Draft lengths that do not depend on how busy the machine is."""
    monkeypatch.setattr(RowCost, "record", lambda cost, rows, seconds: None)


def count_forwards(model) -> list:
    """Grows by the number of rows of each forward from now on."""
    rows, forward = [], type(model).forward

    def counted(segments):
        rows.append(sum(len(ids) for _, ids, _ in segments))
        return forward(model, segments)

    model.forward = counted
    return rows


def trace(model, prompt=PROMPT, session=None, until=None, at=None, **options) -> list:
    """What a consumer sees at each yield, the session's tokens included; `at(session, n)` is called there."""
    session, seen = session or model.session(), []
    for item in session.generate(prompt, **{"max_new_tokens": 24, **options}):
        seen.append((item.text, item.token, item.n_generated, item.finish_reason, session.tokens))
        assert len(session) == len(session.tokens)
        if at is not None:
            at(session, len(seen))
        if len(seen) == until:
            break
    return seen


def tokens_of(seen) -> list:
    return [token for _, token, _, _, _ in seen]


def check_both(model, **options) -> list:
    plain = trace(model, speculate=False, **options)
    assert trace(model, **options) == plain
    return plain


# Index, drafter and cost, without a model.


def brute_force_find(ids):
    for n in range(min(speculation.LONGEST, len(ids)), 0, -1):
        for place in range(len(ids) - 1, n - 1, -1):
            if ids[place - n : place] == ids[len(ids) - n :]:
                return place, n
    return None, 0


def test_index_finds_what_a_scan_finds():
    hypothesis = pytest.importorskip("hypothesis")
    lists = hypothesis.strategies.lists(hypothesis.strategies.integers(0, 3), max_size=30)

    @hypothesis.settings(max_examples=150, deadline=None)
    @hypothesis.given(lists, lists)
    def check(first, more):
        index = NGramIndex(first)
        assert index.find() == brute_force_find(first)
        for n, token in enumerate(more, 1):
            index.append(token)
            assert index.find() == brute_force_find(first + more[:n])
        assert index.ids == first + more

    check()


def test_reading_behind_the_end_goes_on_with_what_was_read():
    index = NGramIndex([7, 1, 2, 3, 1, 2])
    assert index.find() == (3, 2)
    assert index.read(3, 2) == [3, 1] and index.read(3, 0) == []
    assert index.read(3, 8) == [3, 1, 2, 3, 1, 2, 3, 1]
    assert NGramIndex([5, 5]).read(1, 3) == [5, 5, 5]


def drafted(drafter, tokens, row_cost=0.05) -> list:
    """Feeds `tokens`; the lengths of the drafts before each."""
    lengths = []
    for token in tokens:
        lengths.append(len(drafter.propose(speculation.MOST_DRAFT, row_cost)))
        drafter.append(token)
    return lengths


def test_drafts_grow_while_an_answer_copies():
    text = random.Random(0).sample(range(1000), 200)
    drafter = Drafter([*text, 2000])
    lengths = drafted(drafter, text[50:54])
    assert lengths[0] == 0 and 0 < max(lengths) < speculation.MOST_DRAFT
    by_cost = [len(drafter.propose(15, cost)) for cost in (0.01, 0.05, 0.2, 0.5)]
    assert by_cost == sorted(by_cost, reverse=True) and by_cost[0] > by_cost[-1]
    assert drafted(drafter, text[54:150])[-1] == speculation.MOST_DRAFT
    assert drafter.propose(5, 0.05) == text[150:155]
    assert drafter.propose(0, 0.05) == []


def test_drafting_ends_where_matches_are_always_wrong_and_comes_back():
    # Every second token is 0, what follows it is always new: the single match is always wrong.
    drafter = Drafter([0])
    lengths = drafted(drafter, [token for n in range(1, 120) for token in (n, 0)])
    assert sum(lengths[:20]) > 0 and sum(lengths[100:]) == 0
    lengths = drafted(drafter, [token for n in range(40, 70) for token in (n, 0)])
    assert sum(lengths) > 30  # a longer match has a record of its own


def test_drafts_are_right_often_enough_to_pay():
    rng, row_cost = random.Random(1), 0.2
    drafter, cost, n_tokens = Drafter(), 0.0, 4000
    for _ in range(n_tokens):  # each token follows its predecessor's usual one in 15 % of the cases
        last = drafter._index.ids[-1] if drafter._index.ids else 0
        cost += row_cost * len(drafter.propose(15, row_cost))
        drafter.append((last * 7 + 1) % 50 if rng.random() < 0.15 else rng.randrange(50))
    assert cost / n_tokens < 0.02  # even if none of them is ever right


def test_row_cost_is_measured_and_bounded():
    cost = RowCost()
    at_first = cost.value
    cost.record(8, 9.0)  # nothing to compare with yet
    assert cost.value == at_first
    for _ in range(60):
        cost.record(1, 1.0)
        cost.record(5, 2.0)
    assert cost.value == pytest.approx(0.25, abs=0.01)
    for _ in range(60):
        cost.record(3, 100.0)
    assert 0.49 < cost.value <= 0.5
    for _ in range(120):
        cost.record(3, 0.1)
    assert 0.01 <= cost.value < 0.02


# Generation on random:tiny. Drafts of the index first, then an oracle's, spoilt at chosen places.


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 0.4},
        {"temperature": 1.5, "top_k": 5},
        {"temperature": 0.8, "top_p": 0.5, "min_p": 0.02},
        {"temperature": 0.3, "repetition_penalty": 0.8},
        {"temperature": 0, "repetition_penalty": 1.05},
    ],
)
def test_same_answer_with_drafts_of_the_index(tiny, options, seed):
    prompt = [(3 * seed + token) % 250 for token in PROMPT] * 4
    check_both(tiny, prompt=prompt, seed=seed, max_new_tokens=50, **options)


def test_a_looping_answer_needs_fewer_forwards(tiny, fixed_cost):
    loop = {"temperature": 0, "repetition_penalty": 0.5, "max_new_tokens": 100}  # rewarded for repeating
    plain = trace(tiny, speculate=False, **loop)
    assert len(set(tokens_of(plain)[-50:])) < 10
    rows = count_forwards(tiny)
    assert trace(tiny, **loop) == plain
    assert len(rows) < 40 and max(rows) > 8


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.5, "repetition_penalty": 1.2}])
@pytest.mark.parametrize("wrong", [(), (1,), (8,), (3, 4, 12), range(24), range(0, 24, 5)])
def test_every_mixture_of_right_and_wrong_drafts(tiny, oracle, options, wrong):
    plain = trace(tiny, speculate=False, seed=3, **options)
    oracle(tokens_of(plain), wrong=wrong)
    rows = count_forwards(tiny)
    assert trace(tiny, seed=3, **options) == plain
    if not wrong:
        assert rows == [5, 1 + 7, 1 + 7, 7]  # the last draft ends with max_new_tokens


def test_max_new_tokens_and_context_inside_a_draft(tiny, oracle, tiny_nb):
    plain = trace(tiny, speculate=False)
    oracle(tokens_of(plain))
    for n in range(1, 13):
        assert trace(tiny, max_new_tokens=n)[-1][3] == "length"
        check_both(tiny, max_new_tokens=n)
    for n_ctx in range(5, 18):
        with lite_runtime.load(tiny_nb, n_threads=1, n_ctx=n_ctx) as model:
            model.__dict__["eos_ids"] = frozenset()
            seen = check_both(model)
            assert len(seen) == n_ctx - 4 and seen[-1][3] == "length" and len(seen[-1][4]) == n_ctx


def test_end_token_and_stop_string_inside_a_draft(tiny, oracle):
    plain = trace(tiny, speculate=False, temperature=1.5, seed=1)
    oracle(tokens_of(plain))
    for token in tokens_of(plain)[:14]:
        tiny.__dict__["eos_ids"] = frozenset([token])
        assert check_both(tiny, temperature=1.5, seed=1)[-1][3] == "stop"
    tiny.__dict__["eos_ids"] = frozenset()
    text = "".join(text for text, *_ in plain)
    for start in range(0, len(text) - 3, 2):
        assert check_both(tiny, temperature=1.5, seed=1, stop=[text[start : start + 3]])[-1][3] == "stop"


def test_cancel_inside_a_draft(tiny, oracle):
    oracle(tokens_of(trace(tiny, speculate=False)))
    for n in range(1, 24):
        seen = check_both(tiny, at=lambda session, count, n=n: session.cancel() if count == n else None)
        assert seen[-1][1:4] == (None, n, "cancelled") and len(seen) == n + 1
    session = tiny.session()
    trace(tiny, session=session, at=lambda session, count: session.cancel() if count == 24 else None)
    assert trace(tiny, session=session, prompt=[1])[0][3] == "cancelled"  # came after the end: for the next


def test_a_session_left_early_is_as_if_nothing_had_been_drafted(tiny, oracle):
    oracle(tokens_of(trace(tiny, speculate=False)))

    def left(n, speculate, use):
        session = tiny.session()
        stream = session.generate(PROMPT, max_new_tokens=24, speculate=speculate)
        for _ in range(n):
            next(stream)
        result = use(session)
        return session.tokens, result, [item.token for item in stream], session.tokens

    def cut_and_forward(session):
        session.cut(len(session) // 2)
        return session.forward([9, 8]).tolist()

    for n in (1, 2, 3, 9, 10, 16):
        for use in (
            lambda session: session.forward([9, 8]).tolist(),
            lambda session: session.fork().forward([9, 8]).tolist(),
            cut_and_forward,
            lambda session: session.cut(len(session)),
            lambda session: [item.token for item in session.generate([9], max_new_tokens=5)],
        ):
            assert left(n, True, use) == left(n, False, use)


def test_closing_inside_a_draft(tiny, oracle):
    oracle(tokens_of(trace(tiny, speculate=False)))
    session = tiny.session()
    stream = session.generate(PROMPT, max_new_tokens=24)
    for _ in range(4):
        next(stream)
    session.close()
    with pytest.raises(UsageError, match="session is closed"):
        next(stream)


def test_exact_mode_gives_the_same_too(tiny_nb, native_library, fixed_cost):
    with lite_runtime.load(tiny_nb, mode="exact") as model:
        model.__dict__["eos_ids"] = frozenset()
        rows = count_forwards(model)
        check_both(model, temperature=0, repetition_penalty=0.5, max_new_tokens=80)
        assert max(rows) > 8


def test_speculate_is_a_bool_and_can_be_switched_off(tiny):
    with pytest.raises(UsageError, match="speculate 'no', expected True or False"):
        tiny.session().generate(PROMPT, speculate="no")
    rows = count_forwards(tiny)
    trace(tiny, speculate=False, temperature=0, max_new_tokens=100)
    assert rows == [5] + [1] * 99


def test_the_command_line_switches_it_off(tiny_nb, native_library, monkeypatch, capsys):
    made, original = [], generate.Speculation
    monkeypatch.setattr(generate, "Speculation", lambda session: made.append(session) or original(session))
    command = ["run", str(tiny_nb), "Hello", "--json", "--max-new-tokens", "20", "--temperature", "0.5"]
    reports = []
    for flags, n_made in ([], 1), (["--speculate"], 2), (["--no-speculate"], 2):
        assert main(command + flags) == 0 and len(made) == n_made
        reports.append(json.loads(capsys.readouterr().out)["token_ids"])
    assert reports[0] == reports[1] == reports[2]


# Real weights and a real task.

REWRITE = """Repeat this code and change nothing:

```python
def total_of(prices, tax):
    total = sum(prices)
    return total + total * tax
```"""


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"temperature": 0.4, "seed": 3, "repetition_penalty": 1.02}]
)
def test_an_answer_that_repeats_its_prompt(demo_nb, native_library, fixed_cost, options):
    with lite_runtime.load(demo_nb) as model:
        ids = model.text.encode_chat([{"role": "user", "content": REWRITE}])
        rows = count_forwards(model)
        plain = trace(model, prompt=ids, speculate=False, max_new_tokens=40, **options)
        n_plain = len(rows)
        assert trace(model, prompt=ids, max_new_tokens=40, **options) == plain
        assert len(rows) - n_plain < 0.75 * n_plain


# The benchmark.


def test_benchmark_replays_recorded_answers_on_random_weights(tiny_nb, native_library):
    rows = benchmark.measure(tiny_nb, threads=1, repeat=2, new_tokens=8)
    assert [row["prompt"] for row in rows if row["prompt"] == "all"] == ["all"] * 3
    assert all(row["same_tokens"] and row["replayed"] and row["tokens"] <= 24 * 2 for row in rows)
    assert all(row["ratio"]["min"] <= row["ratio"]["median"] <= row["ratio"]["max"] for row in rows)
    no_match = rows[-1]
    assert (no_match["kind"], no_match["drafted"], no_match["forwards"]) == ("no match", 0, 8)
    assert set(json.loads(benchmark.ANSWERS.read_text("utf-8"))) == {*benchmark.REPEATING, *benchmark.FRESH}
    assert "| no match, replayed | all |" in benchmark.table(rows)


def test_benchmark_lets_the_recorded_answer_decide(tiny, fixed_cost, monkeypatch):
    prompt = random.Random(2).sample(range(1, 300), 60)
    run = benchmark.compare(tiny, [*prompt, 0], 50, {"temperature": 0}, answer=prompt)
    assert run["same_tokens"] and run["tokens"] == 50 and run["forwards"] < 15
    assert run["accepted"] == 50 - run["forwards"] <= run["drafted"]
    zeros = np.zeros(tiny.info.n_vocab, np.float32)
    monkeypatch.setattr(Speculation, "take", lambda speculation, token: zeros)
    assert not benchmark.compare(tiny, prompt, 5, {"temperature": 0})["same_tokens"]
