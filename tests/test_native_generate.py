"""Answers of the C API against those of the Python runtime, which takes text and sampling from elsewhere.

What it refuses, tests/native/generate_test.cc shows.
"""

from __future__ import annotations

import ctypes
import json
import threading

import pytest
from native_generate import NativeModel

import lite_runtime
from edge_kit.nb.bundle import read_bundle, write_bundle
from lite_runtime import _native
from lite_runtime.errors import ContextFullError, UnsupportedError

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "今有雉兔同笼，上有三十五头",
    "🙂 A list of emoji: 🎉 🚀",
    "<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n",
)


@pytest.fixture
def native(demo, demo_nb):
    with NativeModel(demo_nb) as model:
        yield model


def in_python(model, prompt, **options):
    """(text, finish reason, number of tokens)."""
    with model.session() as session:
        items = list(session.generate(prompt, **options))
    return "".join(item.text for item in items), items[-1].finish_reason, items[-1].n_generated


def sampling(**values) -> _native.Sampling:
    defaults = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    return _native.Sampling(struct_size=ctypes.sizeof(_native.Sampling), **{**defaults, **values})


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_equals_pythons(demo, demo_nb, prompt):
    with NativeModel(demo_nb) as native:
        text, reason, result = native.generate(prompt, max_new_tokens=24, sampling=sampling())
    assert (text, reason, result.n_generated) == in_python(demo, prompt, max_new_tokens=24, temperature=0)
    assert result.n_prompt == len(demo.text.encode(prompt)) and result.n_cached == 0
    assert result.prefill_seconds > 0


def test_sampling_draws_the_same_tokens(demo, native):
    values = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1}
    for seed in (1, 2**63 + 5):
        native.library.ek_session_cut(native.session, 0)
        drawn = native.generate(PROMPTS[0], max_new_tokens=20, sampling=sampling(seed=seed, **values))
        assert drawn[:2] == in_python(demo, PROMPTS[0], max_new_tokens=20, seed=seed, **values)[:2]


def test_a_second_prompt_goes_on_where_the_first_ended(demo, native):
    with demo.session() as session:
        for prompt in PROMPTS[:2]:
            expected = "".join(i.text for i in session.generate(prompt, max_new_tokens=8, temperature=0))
            assert native.generate(prompt, max_new_tokens=8, sampling=sampling())[0] == expected
            assert len(native) == len(session)


def test_stop_strings_end_it_and_are_not_shown(demo, native):
    whole = in_python(demo, PROMPTS[0], max_new_tokens=24, temperature=0)[0]
    stops = [whole[9:14], "never in it"]
    text, reason, _ = native.generate(PROMPTS[0], max_new_tokens=24, sampling=sampling(), stops=stops)
    assert reason == "stop" and text == whole[: whole.index(stops[0])]
    expected = in_python(demo, PROMPTS[0], max_new_tokens=24, temperature=0, stop=stops)
    assert expected[:2] == (text, reason)


def test_the_callback_ends_it(native):
    text, reason, result = native.generate(PROMPTS[0], on_text=lambda _: False, max_new_tokens=24)
    assert reason == "callback" and text and 1 <= result.n_generated < 24


def test_cancel_from_another_thread(native):
    def cancel(_text) -> bool:
        thread = threading.Thread(target=native.library.ek_session_cancel, args=[native.session])
        thread.start()
        thread.join()
        return True

    _, reason, result = native.generate(PROMPTS[0], on_text=cancel, max_new_tokens=24, sampling=sampling())
    assert reason == "cancelled" and 1 <= result.n_generated < 24
    # The cancel is used up.
    native.library.ek_session_cut(native.session, 0)
    assert native.generate(PROMPTS[0], max_new_tokens=4, sampling=sampling())[1] == "length"


def test_a_cancel_before_it_leaves_the_session_as_it_was(native):
    native.library.ek_session_cancel(native.session)
    text, reason, result = native.generate(PROMPTS[0], max_new_tokens=4)
    assert (text, reason, result.n_generated, len(native)) == ("", "cancelled", 0, 0)


def test_end_of_the_context(demo_nb, demo):
    with NativeModel(demo_nb, n_ctx=16) as native:
        _, reason, result = native.generate(PROMPTS[0], sampling=sampling())
        assert reason == "length" and result.n_prompt + result.n_generated == 17 and len(native) == 16
        with pytest.raises(ContextFullError, match="needs .* tokens of context .16 are in the session"):
            native.generate("more")
        assert len(native) == 16


def with_files(source, path, **files):
    """A copy of a .nb file with other JSON files in its bundle."""
    bundle = read_bundle(source)
    bundle.update({f"{name}.json": json.dumps(content).encode() for name, content in files.items()})
    path.write_bytes(source.read_bytes())
    write_bundle(path, bundle)
    return path


def test_the_files_say_what_is_not_given(demo, demo_nb, tmp_path):
    plain, _, _ = in_python(demo, PROMPTS[0], max_new_tokens=6, temperature=0)
    ids = demo.text.encode(plain)
    config = {"eos_token_id": [5, ids[3]], "max_new_tokens": 6, "do_sample": True, "temperature": 0.35,
              "top_p": 0.8, "top_k": 30, "repetition_penalty": 1.3}  # fmt: skip
    for changed in (config, {**config, "eos_token_id": 7}, {**config, "do_sample": None}):
        path = with_files(demo_nb, tmp_path / "changed.nb", generation_config=changed)
        with lite_runtime.load(path) as model, NativeModel(path) as native:
            text, reason, result = native.generate(PROMPTS[0])
            assert (text, reason, result.n_generated) == in_python(model, PROMPTS[0])


QUESTION = {"role": "user", "content": "What is the capital of France?"}


def test_chat_computes_only_what_the_session_lacks(demo, native):
    messages = [QUESTION]
    text, reason, first = native.chat(messages, max_new_tokens=20, sampling=sampling())
    assert reason == "stop" and text and first.n_cached == 0
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And of Italy?"}]
    again, _, second = native.chat(messages, max_new_tokens=20, sampling=sampling())
    # All of the first turn but the answer's end token, which was no input.
    assert second.n_cached == first.n_prompt + first.n_generated - 1
    assert second.n_prompt == len(demo.text.encode_chat(messages))
    ids = demo.text.encode_chat(messages)
    assert again == in_python(demo, ids, max_new_tokens=20, temperature=0)[0]
    # A question again: one token is computed for the logits.
    same, _, third = native.chat(messages, max_new_tokens=20, sampling=sampling())
    assert same == again and third.n_cached == third.n_prompt - 1


def test_a_conversation_that_does_not_fit_leaves_the_session(demo_nb):
    with NativeModel(demo_nb, n_ctx=64) as native:
        native.chat([QUESTION], max_new_tokens=3)
        length = len(native)
        with pytest.raises(ContextFullError, match="limit is 64"):
            native.chat([QUESTION, {"role": "assistant", "content": "long " * 64}, QUESTION])
        assert len(native) == length > 0


def test_without_a_chat_format_rendered_text_still_works(demo, demo_nb, tmp_path):
    reason = "its text depends on the date"
    manifest = {**demo.manifest, "chat_format": {"status": "not_reduced", "reason": reason}}
    path = with_files(demo_nb, tmp_path / "none.nb", manifest=manifest)
    with NativeModel(path) as native:
        with pytest.raises(UnsupportedError, match=reason):
            native.chat([QUESTION])
        rendered = demo.text.render([QUESTION])
        text, _, _ = native.generate(rendered, max_new_tokens=20, sampling=sampling())
    ids = demo.text.encode_chat([QUESTION])
    assert text == in_python(demo, ids, max_new_tokens=20, temperature=0)[0]
