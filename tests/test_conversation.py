"""Conversations: what is computed again and what is not, thinking, overflow, ends."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from conversations import GREEDY, THOUGHT, check_logits, content, next_prompt, quiet

import lite_runtime
from lite_runtime.conversation import Conversation
from lite_runtime.errors import ContextFullError, UsageError


@pytest.mark.parametrize("kv_dtype", ["f16", "int8"])
@pytest.mark.parametrize("n", [1, 2, 64, 65, 150, 200])
def test_a_cut_is_exact_for_every_common_prefix(native_library, tiny_nb, n, kv_dtype):
    ids = [(7 * i * i + 3) % 300 for i in range(n)]
    others = [(i + 1) % 300 for i in ids]
    with lite_runtime.load(tiny_nb, kv_dtype=kv_dtype) as model, model.session() as cold:
        expected = cold.forward(ids)[-1]
        for common in {0, 1, n // 2, n - 1, n, n + 1}:
            for behind in (0, 1, 70):
                held = (ids + [5])[:common] + others[common:] + [299] * behind
                with model.session() as session:
                    session.forward(held or [299])
                    reused = session.reuse(ids)
                    assert reused == min(common, n - 1)
                    np.testing.assert_array_equal(session.forward(ids[reused:])[-1], expected)


@pytest.mark.parametrize("name", ["tiny", "demo"])
def test_turns_answer_as_cold_ones(request, name):
    model = request.getfixturevalue(name)
    with quiet(model, system="Be brief.") as conversation:
        for turn, question in enumerate(["What is 3 plus 4?", "And 你好 🐔?", "Why?"]):
            ids = next_prompt(conversation, question)
            items = list(conversation.ask(question, **GREEDY))
            with model.session() as cold:
                expected = list(cold.generate(ids, **GREEDY))
            assert [item.token for item in items] == [item.token for item in expected]
            assert content(items) == "".join(item.text for item in expected)
            assert items[-1].finish_reason == expected[-1].finish_reason
            assert items[-1].n_prompt == len(ids) and (items[-1].n_cached > 0) == (turn > 0)
            assert conversation.messages[-1] == {"role": "assistant", "content": content(items)}
        assert [m["role"] for m in conversation.messages] == ["system", *["user", "assistant"] * 3]


def test_the_answers_own_tokens_are_used_again(demo, script):
    with quiet(demo) as conversation:
        answer = script.say(demo, "They are 23 and 12.")
        first = list(conversation.ask("How many?"))[-1]
        script.say(demo, "Yes.")
        second = list(conversation.ask("Sure?"))[-1]
        assert second.n_cached == first.n_prompt + len(answer) - 1  # the end token was no input
        check_logits(conversation, "Why?")
        # Tokens that the tokenizer would not choose for their text: from there on all is new.
        letters = [demo.text.tokenizer.token_to_id(letter) for letter in "twelve"]
        script.say(demo, "He said", end=False)
        n_before = len(script.ids)
        script.ids.extend([*letters, min(demo.eos_ids)])
        third = list(conversation.ask("What?"))[-1]
        assert conversation.messages[-1]["content"] == "He saidtwelve"
        script.say(demo, "Yes.")
        fourth = list(conversation.ask("Sure?"))[-1]
        assert third.n_prompt < fourth.n_cached <= third.n_prompt + n_before + 1
        check_logits(conversation, "Why?")


def test_items_of_a_turn(r1, script):
    ids = script.say(r1, THOUGHT)
    with quiet(r1) as conversation:
        items = list(conversation.ask("今有雉兔同笼"))
        reasoning = "".join(item.reasoning for item in items)
        assert reasoning == "First, 35 heads.\nThen 94 feet, 2 < 4."
        assert content(items) == "有23只鸡，12只兔 🐔。" and "\ufffd" not in reasoning + content(items)
        assert [item.token for item in items] == ids
        assert [item.n_generated for item in items] == list(range(1, len(ids) + 1))
        assert items[-1].n_reasoning == ids.index(r1.text.tokenizer.token_to_id("</think>")) + 1
        assert {item.finish_reason for item in items[:-1]} == {None}
        last = items[-1]
        assert (last.finish_reason, last.cut_in) == ("stop", None)
        assert 0 < last.first_token_seconds and last.prefill_tps > 0 and last.decode_tps > 0
        assert items[0].decode_tps == 0
        assert conversation.messages == [
            {"role": "user", "content": "今有雉兔同笼"},
            {"role": "assistant", "content": content(items), "reasoning_content": reasoning},
        ]


def test_dropped_thinking_is_prefilled_in_idle_time(r1, script):
    with quiet(r1, system="Think.") as conversation:
        script.say(r1, THOUGHT)
        n_first = list(conversation.ask("今有雉兔同笼"))[-1].n_prompt
        ids = next_prompt(conversation, "Why?")
        assert "<think>" not in r1.text.tokenizer.decode(ids[:-2], skip_special_tokens=False)
        check_logits(conversation, "Why?")
        conversation.settle()
        assert conversation.session.tokens == ids[: len(conversation.session)]
        assert len(ids) - len(conversation.session) <= 5  # "Why?" and the beginning of an answer
        check_logits(conversation, "Why?")
        script.say(r1, THOUGHT)
        last = list(conversation.ask("Why?"))[-1]
        assert last.n_cached > n_first and last.n_prompt - last.n_cached <= 5
        assert last.n_prompt == len(ids)


def test_thinking_budget(r1, script):
    closing = r1.text.encode("\n</think>\n\n", bos=False)
    with quiet(r1, thinking_budget=3) as conversation:
        thought = script.say(r1, "one two three four", end=False)[:3]
        script.ids = collections.deque(thought)
        script.say(r1, "Four.")
        items = list(conversation.ask("Count"))
        assert "".join(item.reasoning for item in items) == r1.text.decode(thought)
        assert content(items) == "Four." and items[-1].finish_reason == "stop"
        assert items[-1].n_reasoning == 3
        n = items[-1].n_prompt
        assert conversation.session.tokens[n : n + 3 + len(closing)] == thought + closing
    with quiet(r1, thinking_budget=0) as conversation:
        script.say(r1, "Four.")
        items = list(conversation.ask("Count"))
        assert conversation.session.tokens[items[0].n_prompt - len(closing) : items[0].n_prompt] == closing
        assert content(items) == "Four." and conversation.messages[-1]["reasoning_content"] == ""
    with quiet(r1, thinking_budget=100) as conversation:  # not reached
        ids = script.say(r1, THOUGHT)
        assert [item.token for item in conversation.ask("Count")] == ids


def test_a_budget_that_the_context_has_no_room_to_close(native_library, r1, script):
    with lite_runtime.load(r1.path, n_ctx=12) as model, quiet(model, thinking_budget=4) as conversation:
        script.say(model, "one two three four five six seven eight")
        last = list(conversation.ask("x"))[-1]
        assert (last.finish_reason, last.cut_in) == ("length", "thinking")
        assert len(conversation.session) <= 12
        assert conversation.messages[-1]["content"] == ""


def test_a_prompt_that_fits_but_for_the_closing(native_library, r1):
    n = len(r1.text.encode_chat([{"role": "user", "content": "x"}]))
    with lite_runtime.load(r1.path, n_ctx=n + 1) as model:
        with quiet(model, thinking_budget=0, overflow="stop") as conversation:
            assert [item.cut_in for item in conversation.ask("x")] == ["prompt"]
        with quiet(model, thinking_budget=0) as conversation, pytest.raises(ContextFullError):
            conversation.ask("x")
        with quiet(model, overflow="stop") as conversation:
            assert list(conversation.ask("x", seed=1))[-1].n_generated in (1, 2)


def test_a_budget_changes_no_number_of_the_answer(r1):
    """The forced tokens are inputs like others: the answer is that of a prompt which holds them."""
    options = {"temperature": 1.3, "seed": 11}
    closing = r1.text.encode("\n</think>\n\n", bos=False)
    with quiet(r1, thinking_budget=5) as conversation:
        items = list(conversation.ask("Count", max_new_tokens=20, **options))
    tokens = [item.token for item in items]
    prompt = r1.text.encode_chat([{"role": "user", "content": "Count"}])
    with r1.session() as cold:
        ids = prompt + tokens[:5] + closing
        assert [i.token for i in cold.generate(ids, max_new_tokens=15, **options)] == tokens[5:]
        assert items[-1].cut_in == "answer"


@pytest.mark.parametrize("text, where", [(THOUGHT, "thinking"), ("</think>" + "a b c d e f", "answer")])
def test_length_says_where_it_cut(r1, script, text, where):
    script.say(r1, text)
    with quiet(r1) as conversation:
        last = list(conversation.ask("x", max_new_tokens=4))[-1]
        assert (last.finish_reason, last.cut_in, last.n_generated) == ("length", where, 4)
        assert conversation.messages[-1]["role"] == "assistant"
        check_logits(conversation, "y")


def test_repetition_ends_an_answer(tiny, script):
    for on, reason, n in ((True, "repetition", 96), (False, "length", 120)):
        script.ids = collections.deque(tiny.text.encode("ab", bos=False) * 60)
        with quiet(tiny, stop_at_repetition=on) as conversation:
            items = list(conversation.ask("x", max_new_tokens=120))
            assert (items[-1].finish_reason, items[-1].n_generated) == (reason, n)
            assert content(items) == "ab" * (n // 2)


def test_stop_strings(r1, script):
    script.say(r1, "so END it\n</think>\n\nThe END of it")
    with quiet(r1) as conversation:
        items = list(conversation.ask("x", stop=["END"]))
        assert content(items) == "The " and items[-1].finish_reason == "stop"
        assert "END" in conversation.messages[-1]["reasoning_content"]
        check_logits(conversation, "y")


def small(tiny_nb, n_ctx, **options):
    model = lite_runtime.load(tiny_nb, n_ctx=n_ctx)
    return model, quiet(model, **options)


def test_overflow_error_and_stop(tiny_nb, native_library):
    for overflow in ("error", "stop"):
        model, conversation = small(tiny_nb, 120, overflow=overflow, system="s")
        with model:
            list(conversation.ask("x", **GREEDY))
            before, tokens = list(conversation.messages), conversation.session.tokens
            if overflow == "error":
                with pytest.raises(ContextFullError, match="needs .* tokens of context, the limit is 120"):
                    conversation.ask("y" * 200)
            else:
                (item,) = conversation.ask("y" * 200)
                assert (item.finish_reason, item.cut_in, item.token) == ("length", "prompt", None)
            assert (conversation.messages, conversation.session.tokens) == (before, tokens)
            last = list(conversation.ask("x", temperature=0))[-1]  # the answer fills the context
            assert last.finish_reason in ("length", "stop") and len(conversation.session) <= 120


def test_overflow_slides_and_keeps_the_system_message(tiny_nb, native_library, script):
    model, conversation = small(tiny_nb, 150, overflow="slide", system="Keep")
    with model:
        script.ids = collections.deque(range(1, 251))
        for turn in range(12):
            last = list(conversation.ask(f"{turn}" * 20, max_new_tokens=10))[-1]
            assert last.finish_reason == "length" and last.n_generated == 10
            assert conversation.messages[0] == {"role": "system", "content": "Keep"}
            assert conversation.messages[-2]["content"] == f"{turn}" * 20
            assert len(next_prompt(conversation, "")) <= 150 + 40
            check = [m["role"] for m in conversation.messages]
            assert check == ["system", *["user", "assistant"] * (len(check) // 2)]
        assert len(conversation.messages) < 9
        with pytest.raises(ContextFullError, match="shorten it"):
            conversation.ask("y" * 200)
        assert len(conversation.messages) < 9


def test_overflow_slides_amid_an_answer(tiny_nb, native_library, script):
    model, conversation = small(tiny_nb, 200, overflow="slide", system="Keep")
    with model:
        model.__dict__["eos_ids"] = frozenset()
        script.ids = collections.deque([70 + i % 9 for i in range(10)])
        list(conversation.ask("a" * 60, max_new_tokens=10))
        said = [70 + i % 23 for i in range(170)]
        script.ids = collections.deque(said)
        items = list(conversation.ask("b" * 20, max_new_tokens=100))
        assert [m["content"] for m in conversation.messages[:2]] == ["Keep", "b" * 20]
        assert (items[-1].finish_reason, items[-1].n_generated) == ("length", 100)
        assert [item.token for item in items] == said[:100]
        ids = model.text.encode_chat(conversation.messages[:2]) + said[:99]
        assert conversation.session.tokens == ids
        with model.session() as cold:
            np.testing.assert_array_equal(conversation.session.forward([3])[-1], cold.forward([*ids, 3])[-1])
        script.ids = collections.deque(said)
        last = list(conversation.ask("c" * 60))[-1]  # one turn alone that the context does not hold
        assert (last.finish_reason, last.cut_in) == ("length", "answer")
        assert len(conversation.session) == 200


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"overflow": "slid"}, "overflow 'slid', expected one of error, stop, slide"),
        ({"thinking_budget": -1}, "thinking_budget -1, expected a whole number"),
        ({"system": 5}, "message 0 is"),
        ({"messages": [{"role": "user"}]}, "message 0 is"),
    ],
)
def test_wrong_arguments(tiny, options, problem):
    with pytest.raises(UsageError, match=problem):
        Conversation(tiny, **options)


def test_wrong_questions_change_nothing(tiny):
    with quiet(tiny) as conversation:
        for question, options, problem in (
            (5, {}, "message 0 is"),
            ("\ud800", {}, "not valid Unicode"),
            ("x", {"temperature": -1}, "temperature -1"),
            ("x", {"stop": ""}, "stop ''"),
            ("x", {"max_new_tokens": 0}, "max_new_tokens 0"),
        ):
            with pytest.raises(UsageError, match=problem):
                conversation.ask(question, **options)
            assert conversation.messages == []
        list(conversation.ask("x", **GREEDY))
