"""session.generate on random:tiny: sampling, ends, stop strings, cancelling."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

import lite_runtime
from edge_kit.nb.bundle import read_bundle, write_bundle
from lite_runtime.errors import ContextFullError, EdgeKitError, UsageError
from lite_runtime.generate import make_sampling

PROMPT = [72, 101, 108, 108, 111]


@pytest.fixture
def tiny(native_library, tiny_nb):
    with lite_runtime.load(tiny_nb) as model:
        model.__dict__["eos_ids"] = frozenset()  # random weights would end at random
        yield model


def tokens(model, prompt=PROMPT, **options) -> list:
    with model.session() as session:
        return [item.token for item in session.generate(prompt, **{"max_new_tokens": 12, **options})]


def text(items) -> str:
    return "".join(item.text for item in items)


def test_greedy_is_the_largest_logit_each_time(tiny):
    session, expected = tiny.session(), []
    (logits,) = tiny.forward([(session, PROMPT, "last")])
    for _ in range(12):
        expected.append(int(np.argmax(logits)))
        (logits,) = tiny.forward([(session, expected[-1:], "last")])
    assert tokens(tiny, temperature=0) == expected
    assert tokens(tiny) == expected  # its generation_config does not ask for sampling
    assert tokens(tiny, temperature=0.8, top_k=1) == expected


def test_items_count_and_end(tiny):
    items = list(tiny.session().generate(PROMPT, max_new_tokens=4))
    assert [item.n_generated for item in items] == [1, 2, 3, 4]
    assert [item.finish_reason for item in items] == [None, None, None, "length"]
    assert {item.n_prompt for item in items} == {5}
    assert all(item.prefill_tps > 0 for item in items)
    assert items[0].decode_tps == 0 and all(item.decode_tps > 0 for item in items[1:])
    with pytest.raises(dataclasses.FrozenInstanceError):
        items[0].text = "x"


def test_seed_and_place_alone_decide(tiny, tiny_nb):
    sampled = tokens(tiny, temperature=1.5, seed=7)
    assert tokens(tiny, temperature=1.5, seed=7) == sampled
    assert tokens(tiny, temperature=1.5, seed=8) != sampled
    with lite_runtime.load(tiny_nb, n_threads=1) as one:
        one.__dict__["eos_ids"] = frozenset()
        assert tokens(one, temperature=1.5, seed=7) == sampled
    # In two halves: the second begins with the token that the first has not put into the cache.
    session = tiny.session()
    first = [item.token for item in session.generate(PROMPT, max_new_tokens=5, temperature=1.5, seed=7)]
    rest = [item.token for item in session.generate(first[-1:], max_new_tokens=7, temperature=1.5, seed=7)]
    assert first + rest == sampled


def test_repetition_penalty_knows_the_whole_session(tiny):
    plain = tokens(tiny, max_new_tokens=30, temperature=0)
    assert len(set(plain)) < 30
    penalized = tokens(tiny, max_new_tokens=30, temperature=0, repetition_penalty=1000.0)
    assert len(set(penalized)) == 30 and not set(penalized) & set(PROMPT)


def test_defaults_come_from_generation_config():
    config = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "repetition_penalty": None}
    sampling = make_sampling(config, None, None, None, None, None, seed=3)
    assert (round(sampling.temperature, 6), round(sampling.top_p, 6), sampling.top_k) == (0.6, 0.95, 0)
    assert (sampling.repetition_penalty, sampling.min_p, sampling.seed) == (1.0, 0.0, 3)
    assert make_sampling({**config, "do_sample": False}, None, None, None, None, None, 0).temperature == 0
    assert make_sampling({"temperature": 0.6}, None, None, None, None, None, 0).temperature == 0
    assert make_sampling({**config, "do_sample": False}, 0.5, None, 1.0, None, None, 0).temperature == 0.5
    assert make_sampling(config, 0, 40, 1.0, 0.1, 1.1, 0).top_p == 1.0
    no_temperature = {"do_sample": True, "temperature": None}
    assert make_sampling(no_temperature, None, None, None, None, None, 0).temperature == 1
    of_numpy = make_sampling({}, np.float32(0.5), np.int64(3), None, None, None, np.uint64(2**63))
    assert (of_numpy.temperature, of_numpy.top_k, of_numpy.seed) == (0.5, 3, 2**63)


@pytest.mark.parametrize(
    "config, message",
    [
        ({"max_new_tokens": "many"}, "max_new_tokens 'many', expected a whole number"),
        ({"eos_token_id": {"a": 1}}, "eos_token_id {'a': 1} in its configuration, expected a token id"),
        ({"eos_token_id": [[1]]}, "eos_token_id"),
        ({"eos_token_id": "</s>"}, "eos_token_id '</s>'"),
        ({"do_sample": True, "temperature": "hot"}, "temperature 'hot'"),
    ],
)
def test_a_generation_config_of_wrong_types(tiny_nb, native_library, tmp_path, config, message):
    path = tmp_path / "odd.nb"
    shutil.copy(tiny_nb, path)
    write_bundle(path, {**read_bundle(path), "generation_config.json": json.dumps(config).encode()})
    with lite_runtime.load(path) as model, pytest.raises(EdgeKitError, match=re.escape(message)):
        list(model.session().generate(PROMPT, max_new_tokens=None if "max_new_tokens" in config else 2))


def test_arguments_are_checked_before_the_first_step(tiny):
    session = tiny.session()
    for options, message in [
        ({"temperature": -1}, "temperature -1, expected a number from 0"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_p": 1.5}, "top_p 1.5, expected a number from 0 to 1"),
        ({"min_p": 2}, "min_p 2"),
        ({"top_k": -1}, "top_k -1"),
        ({"repetition_penalty": 0}, "repetition_penalty 0"),
        ({"seed": -1}, "seed -1"),
        ({"seed": None}, "seed None, expected a whole number from 0"),
        ({"seed": 1.5}, "seed 1.5"),
        ({"seed": 2**64}, "seed 18446744073709551616"),
        ({"top_k": 2.5}, "top_k 2.5, expected a whole number"),
        ({"temperature": 10**400}, "temperature 1000"),
        ({"temperature": [1]}, "temperature \\[1\\], expected a number"),
        ({"max_new_tokens": 0}, "max_new_tokens 0, expected a whole number from 1"),
        ({"max_new_tokens": 1.5}, "max_new_tokens 1.5"),
        ({"max_new_tokens": "3"}, "max_new_tokens '3'"),
        ({"stop": ["ok", ""]}, "none of them empty"),
        ({"stop": ""}, "none of them empty"),
        ({"stop": 3}, "stop 3, expected a text or several"),
        ({"stop": b"ok"}, "expected a text or several"),
    ]:
        with pytest.raises(UsageError, match=message):
            session.generate(PROMPT, **options)
    for prompt in ([], ""):
        with pytest.raises(UsageError, match="an empty prompt"):
            session.generate(prompt)
    with pytest.raises(UsageError, match="token id 1000000 at index 0"):
        session.generate([10**6])
    assert len(session) == 0


def test_end_token_ends_without_its_text(tiny):
    plain = list(tiny.session().generate(PROMPT, max_new_tokens=12, temperature=0))
    end = plain[6].token
    first = next(i for i, item in enumerate(plain) if item.token == end)
    for eos in (end, [999, end]):
        del tiny.__dict__["eos_ids"]
        tiny.generation_config["eos_token_id"] = eos
        items = list(tiny.session().generate(PROMPT, max_new_tokens=12, temperature=0))
        assert items[-1].finish_reason == "stop" and items[-1].token == end
        assert items[-1].n_generated == first + 1
        detokenizer = tiny.text.detokenizer()
        assert text(items) == "".join(detokenizer.add(item.token) for item in plain[:first])


def test_stop_string_over_tokens(tiny):
    whole = text(tiny.session().generate(PROMPT, max_new_tokens=60, temperature=1.5, seed=1))
    assert len(whole) > 30
    stop = whole[10:16]
    items = list(tiny.session().generate(PROMPT, max_new_tokens=60, temperature=1.5, seed=1, stop=stop))
    assert items[-1].finish_reason == "stop"
    assert text(items) == whole[: whole.index(stop)]
    held = list(
        tiny.session().generate(PROMPT, max_new_tokens=60, temperature=1.5, seed=1, stop=whole[-4:] + "!")
    )
    assert text(held) == whole and held[-1].finish_reason == "length"  # flushed at the end


def test_a_prompt_too_long_is_refused_at_once(tiny_nb):
    with lite_runtime.load(tiny_nb, n_ctx=8) as model:
        session = model.session()
        model.forward([(session, PROMPT, "none")])
        with pytest.raises(
            ContextFullError, match="needs 9 tokens .*5 are in the session, 4 are new.* limit is 8"
        ):
            session.generate([1, 2, 3, 4])
        assert session.tokens == PROMPT


def test_generation_ends_where_the_context_does(tiny_nb):
    with lite_runtime.load(tiny_nb, n_ctx=8) as model:
        model.__dict__["eos_ids"] = frozenset()
        session = model.session()
        items = list(session.generate(PROMPT))
        assert len(items) == 4 and items[-1].finish_reason == "length" and len(session) == 8
        full = model.session()
        assert len(list(full.generate(list(range(8))))) == 1


def test_text_prompt_is_sent_raw(tiny):
    session = tiny.session()
    list(session.generate("Hello", max_new_tokens=1))
    assert session.tokens == tiny.text.encode("Hello")
    list(session.generate(" there", max_new_tokens=1))  # no second BOS inside a session
    assert session.tokens == tiny.text.encode("Hello") + tiny.text.encode(" there", bos=False)


def test_cancel_between_tokens(tiny):
    session, items = tiny.session(), []
    for item in session.generate(PROMPT, max_new_tokens=50):
        items.append(item)
        if len(items) == 3:
            session.cancel()
    assert len(items) == 4
    assert (items[-1].token, items[-1].finish_reason, items[-1].n_generated) == (None, "cancelled", 3)
    assert len(session) == len(PROMPT) + 2


def test_a_cancel_that_comes_too_late_does_not_end_the_next_answer(tiny):
    session, forward = tiny.session(), tiny.forward

    def forward_then_cancel(segments):
        logits = forward(segments)
        session.cancel()  # after the native code has looked for the last time
        return logits

    tiny.forward = forward_then_cancel
    assert [item.finish_reason for item in session.generate(PROMPT, max_new_tokens=1)] == ["length"]
    del tiny.forward
    assert [item.finish_reason for item in session.generate([5], max_new_tokens=2)] == [None, "length"]
    session.cancel()  # while nothing runs: meant for the next one
    assert [item.finish_reason for item in session.generate([5], max_new_tokens=2)] == ["cancelled"]


def test_closing_ends_a_generation(tiny):
    session = tiny.session()
    stream = session.generate(PROMPT, max_new_tokens=5)
    next(stream)
    session.close()
    with pytest.raises(UsageError, match="session is closed"):
        next(stream)
