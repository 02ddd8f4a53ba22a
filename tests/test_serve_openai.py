"""OpenAI's own client against the server: chat, streams, JSON schemas, stop, seed, cancel."""

from __future__ import annotations

import json
import random
import threading
import time

import pytest
from serving import serve, until

import lite_runtime

openai = pytest.importorskip("openai", reason="needs the dev extra")
pytest.importorskip("fastapi", reason="needs the serve extra")

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"messages": QUESTION, "temperature": 0, "max_tokens": 16}


@pytest.fixture(scope="module")
def server(native_library, demo_nb):
    with serve(demo_nb) as served:
        yield served


@pytest.fixture(scope="module")
def r1(native_library, r1_nb):
    with serve(r1_nb, "--n-ctx", 600) as served:
        yield served


@pytest.fixture(scope="module")
def alone(native_library, demo_nb):
    with lite_runtime.load(demo_nb) as model:
        yield model


def client_of(served):
    return openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture
def client(server):
    return client_of(server)


def wanted(model, **options) -> str:
    with model.session() as session:
        items = session.generate(model.text.encode_chat(QUESTION), temperature=0, **options)
        return "".join(item.text for item in items)


def name_of(client) -> str:
    return client.models.list().data[0].id


def chat(client, **options):
    return client.chat.completions.create(model=name_of(client), **{**GREEDY, **options})


def streamed(chunks):
    """(text, reasoning, last choice, usage) of a stream."""
    text, reasoning, last, usage = "", "", None, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            last = choice
    return text, reasoning, last, usage


def test_a_chat_is_answered_as_in_python(client, alone):
    answer = chat(client)
    assert answer.choices[0].message.content == wanted(alone, max_new_tokens=16)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage.prompt_tokens == len(alone.text.encode_chat(QUESTION))
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert answer.model == name_of(client) == client.models.retrieve(name_of(client)).id


def test_an_answer_may_be_sent_back_as_it_came(client):
    message = chat(client).choices[0].message.model_dump()
    messages = [*QUESTION, message, {"role": "user", "content": "Sure?"}]
    options = {"messages": messages, "stream": None, "tool_choice": "none", "max_tokens": 4}
    assert chat(client, extra_body=options).usage.completion_tokens == 4


def test_a_stream_gives_the_same(client):
    whole = chat(client)
    text, _, last, usage = streamed(chat(client, stream=True, stream_options={"include_usage": True}))
    assert text == whole.choices[0].message.content
    assert last.finish_reason == "stop" and usage.completion_tokens == whole.usage.completion_tokens
    assert streamed(chat(client, stream=True))[3] is None


def test_an_answer_that_is_cut_says_so(client):
    choice = chat(client, max_tokens=3).choices[0]
    assert choice.finish_reason == "length" and choice.edge_cut_in == "answer"
    assert chat(client, max_tokens=None, max_completion_tokens=2).usage.completion_tokens == 2


def test_stop_strings_end_an_answer(client):
    content = chat(client).choices[0].message.content
    stop = content[5:9]
    choice = chat(client, stop=[stop, "never"]).choices[0]
    assert choice.message.content == content[: content.index(stop)] and choice.finish_reason == "stop"
    assert streamed(chat(client, stop=stop, stream=True))[0] == choice.message.content


def test_a_seed_gives_the_same_again_and_none_another(client):
    options = {"temperature": 1.5, "max_tokens": 12}
    first, second = (chat(client, seed=7, **options).choices[0].message.content for _ in range(2))
    assert first == second
    assert len({chat(client, **options).choices[0].message.content for _ in range(4)}) > 1


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "people": {"type": "integer", "maximum": 99}},
    "required": ["city", "people"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
def test_a_json_schema_is_kept_to(client, stream):
    response_format = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    answer = chat(client, response_format=response_format, max_tokens=64, stream=stream)
    content = streamed(answer)[0] if stream else answer.choices[0].message.content
    found = json.loads(content)
    assert found.keys() == {"city", "people"}
    assert len(found["city"]) <= 12 and found["people"] <= 99


def test_json_and_a_regular_expression(client):
    content = chat(client, response_format={"type": "json_object"}, max_tokens=100, seed=1).choices[0]
    if content.finish_reason == "stop":
        assert isinstance(json.loads(content.message.content), dict)
    assert content.message.content.lstrip().startswith("{")
    found = chat(client, extra_body={"response_format": {"type": "regex", "pattern": "(yes|no), [0-9]{3}"}})
    assert found.choices[0].message.content in [f"{a}, {n:03}" for a in ("yes", "no") for n in range(1000)]


def test_logprobs_of_each_token(client):
    answer = chat(client, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in content).decode() == answer.choices[0].message.content
    for entry in content:
        assert len(entry.top_logprobs) == 3 and entry.logprob <= 0
        assert entry.top_logprobs[0].token == entry.token  # greedy
    chunks = list(chat(client, logprobs=True, stream=True))
    entries = [entry for chunk in chunks for entry in chunk.choices[0].logprobs.content]
    assert [entry.logprob for entry in entries] == [entry.logprob for entry in content]
    assert chat(client).choices[0].logprobs is None


def test_a_bias_forbids_a_token(client, alone):
    first = chat(client).choices[0].message.content
    (token, *_) = alone.text.encode(first, bos=False)
    other = chat(client, logit_bias={str(token): -100}).choices[0].message.content
    assert not other.startswith(alone.text.decode([token]))


def test_completions_of_a_text_and_of_token_ids(client, alone):
    options = {"model": name_of(client), "max_tokens": 8, "temperature": 0}
    prompt = "The capital of France is"
    ids = alone.text.encode(prompt)
    first = client.completions.create(prompt=prompt, logprobs=2, **options)
    assert first.choices[0].text.startswith(" Paris")
    for other in (ids, [prompt], [ids]):
        assert client.completions.create(prompt=other, **options).choices[0].text == first.choices[0].text
    logprobs = first.choices[0].logprobs
    assert "".join(logprobs.tokens) == first.choices[0].text
    starts = logprobs.text_offset
    assert [first.choices[0].text[a:b] for a, b in zip(starts, [*starts[1:], None])] == logprobs.tokens
    chunks = client.completions.create(prompt=prompt, stream=True, **options)
    assert "".join(chunk.choices[0].text for chunk in chunks) == first.choices[0].text


def test_reasoning_is_apart_from_the_answer(r1):
    client = client_of(r1)
    options = {"max_tokens": 24, "extra_body": {"thinking_budget": 5}}
    choice = chat(client, **options).choices[0]
    text, reasoning, last, usage = streamed(
        chat(client, stream=True, stream_options={"include_usage": True}, **options)
    )
    assert choice.message.reasoning_content == reasoning != ""
    assert choice.message.content == text and "think" not in text
    assert usage.completion_tokens_details.reasoning_tokens == 5
    cut = chat(client, max_tokens=3).choices[0]
    assert (cut.finish_reason, cut.edge_cut_in, cut.message.content) == ("length", "thinking", "")


def test_an_answer_in_circles_ends_as_length_with_the_reason_apart(client):
    circles = {"response_format": {"type": "regex", "pattern": "(no ){300}"}}
    answer = chat(client, max_tokens=400, extra_body=circles)
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.edge_finish_reason) == ("length", "repetition")
    assert 96 <= answer.usage.completion_tokens < 200
    on = chat(client, max_tokens=400, extra_body={**circles, "stop_at_repetition": False}).choices[0]
    assert on.message.content == "no " * 300 and on.finish_reason == "stop"


def test_leaving_a_stream_frees_its_place(server, client):
    name = 'edge_kit_requests_ended_total{reason="cancelled"}'
    before = server.metrics().get(name, 0)
    stream = client.completions.create(
        model=name_of(client), prompt="One, two,", max_tokens=1500, temperature=0, stream=True,
        extra_body={"ignore_eos": True, "stop_at_repetition": False},
    )  # fmt: skip
    for _ in zip(range(3), stream):
        pass
    assert server.metrics()["edge_kit_running_requests"] == 1
    stream.close()
    until(lambda: server.metrics()["edge_kit_running_requests"] == 0, 2)
    until(lambda: server.metrics().get(name, 0) > before, 5)


@pytest.mark.parametrize(
    "options, status, text",
    [
        ({"model": "gpt-4"}, 404, "there is no model 'gpt-4' here"),
        ({"messages": [{"role": "user", "content": "x " * 9000}]}, 400, "the limit is"),
        ({"extra_body": {"temprature": 1}}, 400, "temprature: unknown field.*did you mean 'temperature'"),
        ({"temperature": 3}, 400, "temperature: Input should be less than or equal to 2"),
        ({"n": 2}, 400, "n: expected 1"),
        (
            {"messages": [{"role": "user", "content": 5}]},
            400,
            "messages.0.content: expected a text, or text parts",
        ),
        ({"messages": [{"role": "user"}]}, 400, "messages.0.content: expected a text"),
        ({"messages": [{"role": "user", "content": "x", "nam": "y"}]}, 400, "nam: unknown field.*'name'"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty: expected 0"),
        ({"top_logprobs": 3}, 400, "top_logprobs goes with logprobs"),
        (
            {"extra_body": {"response_format": {"type": "text", "pattern": "x"}}},
            400,
            "goes with the type regex",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools: "),
        ({"logit_bias": {"x": 1}}, 400, "logit_bias of token 'x', expected a token id"),
        ({"logit_bias": {"999999": 1}}, 400, "logit_bias: token id 999999"),
        ({"stop": [""]}, 400, "stop"),
        ({"response_format": {"type": "json_schema"}}, 400, "has no json_schema"),
        ({"extra_body": {"response_format": {"type": "regex", "pattern": "("}}}, 400, "cannot be used"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(client, options, status, text):
    with pytest.raises(openai.APIStatusError, match=text) as error:
        client.chat.completions.create(**{"model": name_of(client), **GREEDY, **options})
    assert error.value.status_code == status


def test_many_clients_at_once_get_their_own_answers(server, alone):
    numbers = list(range(12))
    prompts = [f"Count from {n}: {n}," for n in numbers]
    random.Random(3).shuffle(prompts)
    found = {}

    def ask(prompt):
        client = client_of(server)
        answer = client.completions.create(model=name_of(client), prompt=prompt, max_tokens=12, temperature=0)
        found[prompt] = answer.choices[0].text

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
        time.sleep(0.01)
    for thread in threads:
        thread.join(60)
    for prompt in prompts:
        with alone.session() as session:
            items = session.generate(prompt, temperature=0, max_new_tokens=12)
            assert found[prompt] == "".join(item.text for item in items)
