"""Logit bias, logprobs, JSON schemas and regular expressions, in single answers and in batches."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest
from conversations import Script

import lite_runtime
from lite_runtime.answer import AnswerReader
from lite_runtime.batching import Batcher
from lite_runtime.constraint import Constraint
from lite_runtime.conversation import Conversation
from lite_runtime.errors import EdgeKitError, UsageError
from lite_runtime.output_control import LOWEST, Logprobs, OutputControl, logprobs_of
from lite_runtime.thinking import Tags

PROMPT = [72, 101, 108, 108, 111]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["猫", "dog"]}, "minItems": 1, "maxItems": 3},
        "alive": {"type": "boolean"},
    },
    "required": ["name", "age", "tags", "alive"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llguidance():
    return pytest.importorskip("llguidance")


def answer(model, prompt=PROMPT, **options) -> list:
    with model.session() as session:
        return list(session.generate(prompt, **{"max_new_tokens": 40, **options}))


def text(items) -> str:
    return "".join(item.text for item in items)


def check_person(written: str) -> None:
    person = json.loads(written)
    assert list(person) == ["name", "age", "tags", "alive"]
    assert isinstance(person["name"], str) and len(person["name"]) <= 12
    assert type(person["age"]) is int and 0 <= person["age"] <= 120
    assert 1 <= len(person["tags"]) <= 3 and set(person["tags"]) <= {"猫", "dog"}
    assert isinstance(person["alive"], bool)


def test_logprobs_are_the_log_softmax_of_the_forwards_logits(demo):
    prompt = demo.text.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    items = answer(demo, prompt, temperature=0.9, seed=4, logprobs=3, logit_bias={5: -100}, max_new_tokens=12)
    tokens = [item.token for item in items]
    with demo.session() as session:
        rows = session.forward([*prompt, *tokens[:-1]])[len(prompt) - 1 :].astype(np.longdouble)
    expected = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    for item, row in zip(items, expected):
        assert abs(item.logprobs.logprob - row[item.token]) < 1e-9
        best = np.argsort(-row, kind="stable")[:3]
        assert [token for token, _ in item.logprobs.top] == best.tolist()
        assert np.allclose([value for _, value in item.logprobs.top], row[best].astype(float), atol=1e-9)
    with Batcher(demo) as batcher:
        options = {"temperature": 0.9, "seed": 4, "logit_bias": {5: -100}, "max_new_tokens": 12}
        batched = [item.logprobs for item in batcher.submit(prompt, logprobs=3, **options)]
        assert batched == [item.logprobs for item in items]
        assert {item.logprobs for item in batcher.submit(prompt, **options)} == {None}


def test_logprobs_of_ties_and_extremes():
    found = logprobs_of(np.array([1, 3, 3, 0, 3], np.float32), 3, 2)
    share = np.log(3 + np.exp(-2) + np.exp(-3))
    assert [token for token, _ in found.top] == [1, 2]
    assert np.allclose([found.logprob, found.top[0][1]], [-3 - share, -share], atol=1e-12)
    wide = logprobs_of(np.array([1e4, -1e4, 9999], np.float32), 1, 3)
    assert wide.logprob == pytest.approx(-2e4 - np.log1p(np.exp(-1)), abs=1e-9)
    assert logprobs_of(np.zeros(7, np.float32), 0, 0) == Logprobs(-np.log(7), ())


def test_bias_decides_and_leaves_the_logprobs(tiny):
    plain = answer(tiny, temperature=0, logprobs=1)
    banned = plain[0].token
    assert answer(tiny, temperature=0, logit_bias={})[0].token == banned
    forced = answer(tiny, temperature=0.7, logit_bias={65: 100, np.int64(66): np.float32(99.5)}, logprobs=1)
    assert {item.token for item in forced} == {65}
    assert forced[0].logprobs.top == plain[0].logprobs.top
    without = answer(tiny, temperature=0, logit_bias={banned: -100}, logprobs=2)
    assert banned not in [item.token for item in without] and without[0].logprobs.top[0][0] == banned
    assert without[0].token == without[0].logprobs.top[1][0]


def test_speculation_changes_nothing(tiny):
    repeating = PROMPT * 6
    for bias in ({65: 3.0}, {65: 100, 66: 99}):
        one, other = (
            answer(tiny, repeating, temperature=0, logit_bias=bias, logprobs=2, speculate=speculate)
            for speculate in (False, True)
        )
        assert [(i.token, i.logprobs) for i in one] == [(i.token, i.logprobs) for i in other]


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"logit_bias": {-1: 1}}, "token id -1, expected a whole number from 0 to"),
        ({"logit_bias": {10**9: 1}}, "token id 1000000000"),
        ({"logit_bias": {"5": 1}}, "token id '5'"),
        ({"logit_bias": {5: 101}}, "token 5: 101, expected a number from -100 to 100"),
        ({"logit_bias": {5: float("nan")}}, "token 5: nan"),
        ({"logit_bias": {5: True}}, "token 5: True"),
        ({"logit_bias": [5]}, "expected {token id: number}"),
        ({"logprobs": 21}, "logprobs 21, expected a whole number from 0 to 20"),
        ({"logprobs": True}, "logprobs True"),
        ({"constraint": "[a-z]"}, "expected one of lite_runtime.constraint"),
    ],
)
def test_wrong_options(tiny, options, problem):
    with tiny.session() as session, pytest.raises(UsageError) as refused:
        session.generate(PROMPT, **options)
    assert problem in str(refused.value)


def test_a_mask_outdoes_every_bias_and_penalty(tiny):
    class OnlySix:
        complete = False

        def begin(self):
            return self

        def mask(self, logits):
            masked = np.full_like(logits, LOWEST)
            masked[6] = logits[6]
            return masked

        def accept(self, token):
            assert token == 6

    options = {"temperature": 1e5, "logit_bias": {6: -100, 7: 100}, "repetition_penalty": 1e6}
    assert {item.token for item in answer(tiny, constraint=OnlySix(), **options)} == {6}
    control = OutputControl(10, {6: 1.5})
    logits = np.zeros(10, np.float32)
    assert control.adjust(logits)[6] == 1.5 and not logits.any()


def test_a_json_schema_on_real_weights(demo, llguidance):
    question = "Describe a person as JSON."
    prompt = demo.text.encode_chat([{"role": "user", "content": question}])
    constraint = Constraint.json_schema(demo, PERSON)
    for options in ({"temperature": 0}, {"temperature": 1.0, "seed": 1}):
        items = answer(demo, prompt, constraint=constraint, max_new_tokens=100, **options)
        assert items[-1].finish_reason == "stop"
        check_person(text(items))


def test_json_of_a_model_that_says_anything(tiny, llguidance):
    constraint = Constraint.json_schema(tiny, json.dumps(PERSON))
    options = {"temperature": 1.5, "max_new_tokens": 400, "constraint": constraint}
    with Batcher(tiny) as batcher:
        requests = [batcher.submit(PROMPT, seed=seed, **options) for seed in range(8)]
        batched = [list(request) for request in requests]
    for seed, items in enumerate(batched):
        single = answer(tiny, seed=seed, **options)
        assert [(i.token, i.text, i.finish_reason) for i in items] == [
            (i.token, i.text, i.finish_reason) for i in single
        ]
        if items[-1].finish_reason == "stop":
            check_person(text(items))
    assert [items[-1].finish_reason for items in batched].count("stop") >= 4


@pytest.mark.parametrize(
    "pattern", [r"\d{4}-\d{2}-\d{2}", "(鸡|兔)[0-9]+只🐔", "yes|no", r"[A-Z][a-z]{2,5}( [A-Z][a-z]{2,5})?\."]
)
def test_a_regular_expression(tiny, llguidance, pattern):
    constraint = Constraint.regex(tiny, pattern)
    for seed in range(4):
        items = answer(tiny, temperature=1.5, seed=seed, constraint=constraint, max_new_tokens=200)
        assert items[-1].finish_reason == "stop" and re.fullmatch(pattern, text(items))


def test_an_end_token_comes_where_the_text_is_complete_alone(tiny, llguidance, monkeypatch):
    constraint = Constraint.regex(tiny, "(ab)+")
    end = 300
    monkeypatch.setitem(tiny.__dict__, "eos_ids", frozenset([end]))
    for seed in range(6):
        bias = {end: 4}  # it would like to end at once
        items = answer(tiny, temperature=1, seed=seed, constraint=constraint, logit_bias=bias)
        assert items[-1].token == end and re.fullmatch("(ab)+", text(items))
    monkeypatch.setitem(tiny.__dict__, "eos_ids", frozenset())
    items = answer(tiny, temperature=1, constraint=constraint, max_new_tokens=5)
    assert items[-1].finish_reason == "length" and text(items) == "ababa"
    with pytest.raises(EdgeKitError, match="allows no token"):
        answer(tiny, constraint=Constraint.regex(tiny, ""))


def test_speculation_keeps_to_a_constraint(tiny, llguidance):
    constraint = Constraint.regex(tiny, "([a-f]{3} ){30}")
    one, other = (
        answer(
            tiny, PROMPT * 6, constraint=constraint, max_new_tokens=200, temperature=0, speculate=speculate
        )
        for speculate in (False, True)
    )
    assert [i.token for i in one] == [i.token for i in other] and re.fullmatch("([a-f]{3} ){30}", text(one))


def test_a_constraint_holds_behind_the_reasoning(r1, llguidance, monkeypatch):
    tags = Tags.of_template(r1.text.template_source)
    closing = r1.text.encode(tags.closing, bos=False)
    prompt = r1.text.render([{"role": "user", "content": "Yes?"}])
    options = {"temperature": 1.3, "seed": 2, "max_new_tokens": 40, "closing": closing}
    ids = r1.text.encode(prompt, bos=False)
    with Batcher(r1) as batcher:
        free, kept = (
            list(batcher.submit(ids, reader=AnswerReader(prompt, tags, 6), constraint=constraint, **options))
            for constraint in (None, Constraint.regex(r1, "yes|no"))
        )
        assert "".join(i.reasoning for i in kept) == "".join(i.reasoning for i in free) != ""
        assert text(kept) in ("yes", "no") and kept[-1].finish_reason == "stop"
        # The model ends its reasoning itself; what it would say next is masked.
        script = Script()
        draws = script.say(r1, "Hm.\n</think>", end=False)
        real = lite_runtime.generate.sample
        monkeypatch.setattr(
            "lite_runtime.generate.sample", lambda *a: script.sample(*a) if script.ids else real(*a)
        )
        kept = list(
            batcher.submit(
                ids, reader=AnswerReader(prompt, tags), constraint=Constraint.regex(r1, "yes|no"), **options
            )
        )
        assert [i.token for i in kept[: len(draws)]] == draws
        assert "".join(i.reasoning for i in kept) == "Hm." and text(kept) in ("yes", "no")


@pytest.mark.parametrize(
    "make, problem",
    [
        (lambda m: Constraint.regex(m, "[a-"), "the regular expression cannot be used"),
        (lambda m: Constraint.regex(m, "(?=a)b"), "the regular expression cannot be used"),
        (lambda m: Constraint.regex(m, 5), "regular expression 5, expected a text"),
        (lambda m: Constraint.json_schema(m, "{"), "the JSON schema cannot be read"),
        (lambda m: Constraint.json_schema(m, {"type": {1, 2}}), "the JSON schema cannot be read"),
        (lambda m: Constraint.json_schema(m, {"type": "nothing"}), "the JSON schema cannot be used"),
        (lambda m: Constraint.json_schema(m, {"$ref": "#/nowhere"}), "the JSON schema cannot be used"),
    ],
)
def test_a_grammar_that_is_none(tiny, llguidance, make, problem):
    with pytest.raises(UsageError) as refused:
        make(tiny)
    assert problem in str(refused.value) and "\n" not in str(refused.value)


def test_without_llguidance(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for make in (lambda: Constraint.regex(tiny, "a"), lambda: Constraint.json_schema(tiny, {})):
        with pytest.raises(UsageError, match="pip install llguidance"):
            make()


def test_a_conversation_constrains_the_answer_and_not_the_reasoning(r1, llguidance):
    """Also where the budget of thinking is used up, which begins another generation."""
    for options in ({"thinking_budget": 4}, {"thinking_budget": 0}):
        with Conversation(r1, prefill_when_idle=False, **options) as conversation:
            constraint = Constraint.regex(r1, "(yes|no), [0-9]{2}")
            items = list(conversation.ask("Well?", max_new_tokens=40, temperature=0, constraint=constraint))
        content = "".join(item.content for item in items)
        assert re.fullmatch("(yes|no), [0-9]{2}", content) and items[-1].finish_reason == "stop"
        assert items[-1].n_reasoning == options["thinking_budget"]


def test_a_conversation_tells_logprobs(demo):
    with Conversation(demo, prefill_when_idle=False) as conversation:
        items = list(conversation.ask("Hi", max_new_tokens=5, temperature=0, logprobs=2))
    assert all(item.logprobs.top[0] == (item.token, item.logprobs.logprob) for item in items)
    assert all(len(item.logprobs.top) == 2 for item in items)
