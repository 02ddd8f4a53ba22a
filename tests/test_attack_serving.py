"""Clients that mean harm, and clients that are careless: what one asks for may not cost the others."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import threading

import pytest
from serving import serve, until

import lite_runtime
from lite_runtime import constraint
from lite_runtime.answer import AnswerReader
from lite_runtime.batching import Batcher, BatchItem
from lite_runtime.errors import QueueFullError, UsageError
from lite_runtime.thinking import Tags

pytest.importorskip("fastapi", reason="needs the serve extra")
uvicorn = pytest.importorskip("uvicorn", reason="needs the serve extra")

from edge_kit.server.answer_cache import AnswerCache  # noqa: E402
from edge_kit.server.question import Question  # noqa: E402
from edge_kit.server.service import Answer  # noqa: E402

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0}


@pytest.fixture(scope="module")
def server(native_library, demo_nb):
    with serve(demo_nb) as served:
        yield served
        assert served.health() == "ready" and "Traceback" not in served.text()


@pytest.fixture(scope="module")
def open_demo(native_library, demo_nb):
    with lite_runtime.load(demo_nb, n_threads=1) as model:
        yield model


# Schemas and patterns


def chain(n: int, link) -> dict:
    """A schema of n others, each of which leads to the next one."""
    schemas = {f"a{i}": link({"$ref": f"#/$defs/a{i + 1}"}) for i in range(n)}
    return {"$ref": "#/$defs/a0", "$defs": {**schemas, f"a{n}": {"type": "null"}}}


LINKS = {
    "reference": lambda schema: schema,
    "array": lambda schema: {"type": "array", "items": schema},
    "tuple": lambda schema: {"prefixItems": [schema]},
    "choice": lambda schema: {"anyOf": [schema, {"type": "null"}]},
    "object": lambda schema: {"additionalProperties": schema},
    "deep": lambda schema: nested(30, schema),
}


def nested(n: int, schema) -> dict:
    for _ in range(n):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize("link", LINKS)
def test_schemas_that_lead_to_others_may_not_use_up_the_stack(server, link):
    """The library that compiles them goes down one by one, and nobody could catch the end of a stack."""
    for n in (40, 600):
        schema = chain(n, LINKS[link])
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        status, answer, _ = server.post(CHAT, {**HI, "response_format": form})
        if n == 600 or link == "deep":
            message = answer["error"]["message"]
            assert status == 400 and ("levels at most" in message or "characters" in message)
        else:
            assert status == 200, answer


@pytest.mark.parametrize(
    "schema",
    [
        {"const": "x" * constraint.MOST_CHARACTERS},
        {"type": "string", "pattern": "^" + "(x|xx|y)?" * 4000 + "$"},
        {"enum": ["v" * 20 + str(i) for i in range(2000)]},
    ],
    ids=["const", "pattern", "enum"],
)
def test_a_long_schema_is_refused(server, schema):
    """At 256 KB one step of such a pattern took half a minute, in which no answer went on."""
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    status, answer, _ = server.post(CHAT, {**HI, "response_format": form})
    assert status == 400 and "characters, 32768 at most" in answer["error"]["message"]


def test_a_long_pattern_is_refused(server):
    form = {"type": "regex", "pattern": "x?" * 20000}
    status, answer, _ = server.post(CHAT, {**HI, "response_format": form})
    assert status == 400 and "characters, 32768 at most" in answer["error"]["message"]


def test_a_schema_of_many_models_is_taken(open_demo):
    """As a program's own data types give: sixty of them, each with a few fields."""
    fields = {"name": {"type": "string"}, "size": {"type": ["integer", "null"]}}
    schema = chain(60, lambda next_one: {"type": "object", "properties": {**fields, "next": next_one}})
    constraint.Constraint.json_schema(open_demo, schema)


@pytest.mark.parametrize("pattern", ["\ud800", "a\udfff"])
def test_a_pattern_that_is_no_unicode(open_demo, pattern):
    with pytest.raises(UsageError, match="the regular expression cannot be read"):
        constraint.Constraint.regex(open_demo, pattern)


# Bodies


FLOODS = {
    "parts": {"messages": [{"role": "user", "content": [{}] * 300000}]},
    "numbers": {"messages": [{"role": "user", "content": [0] * 400000}]},
    "messages": {"messages": [{"role": "user", "content": [{"a": 1, "b": 2}] * 10}] * 4000},
    "fields": {**HI, **{f"k{i}": 1 for i in range(80000)}},
    "bias": {**HI, "logit_bias": {str(i): "x" for i in range(80000)}},
    "metadata": {**HI, "metadata": {str(i): 1 for i in range(80000)}},
    "ids": {"prompt": [True] * 150000},
    "lists of ids": {"prompt": [[True] * 150000]},
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_body_full_of_faults_gets_few_errors(name):
    """The event loop makes them, and the first one alone is told: 500,000 took it five seconds."""
    from pydantic import ValidationError

    from edge_kit.server import schemas

    body = schemas.CompletionBody if "ids" in name else schemas.ChatBody
    with pytest.raises(ValidationError) as caught:
        body.model_validate(FLOODS[name])
    assert caught.value.error_count() < 30


def test_an_object_of_too_many_fields_is_told(server):
    status, answer, _ = server.post(CHAT, {**HI, "logit_bias": {str(i): 1 for i in range(2000)}})
    assert status == 400
    assert answer["error"]["message"] == "logit_bias: an object of 2000 fields, expected 1024 at most"


# Places, and answers that are kept


def test_prompts_on_their_way_count_as_waiting(open_demo):
    """They become tokens before they are lined up; there may be no more of them than have a place."""
    with Batcher(open_demo, max_batch=1, max_queue=2) as batcher:
        batcher.check_place(2)
        with pytest.raises(QueueFullError, match="0 requests run and 3 wait, 2 may wait"):
            batcher.check_place(3)
        assert batcher.stats().ended == {"refused": 1}


def test_many_long_prompts_at_once_are_refused_early(native_library, demo_nb):
    """Each takes a while to become tokens, and is too long then: without a bound all would wait in line."""
    with serve(demo_nb, "--max-batch", 1, "--max-queue", 1) as served:
        body = {"prompt": "12345678 " * 20000}
        with concurrent.futures.ThreadPoolExecutor(12) as threads:
            statuses = set(threads.map(lambda _: served.post("/v1/completions", body)[0], range(24)))
        assert statuses == {400, 429}
        assert served.post(CHAT, HI)[0] == 200


@pytest.mark.parametrize("text", ["<think>\nhm\n</think>\n\nYes", "Yes"])
def test_a_kept_answer_has_the_reasoning_that_it_had(text):
    """Of a model whose template leaves it to the model to open the block."""

    def question():
        return Question("Hi", [1], {}, AnswerReader("Hi", Tags()), [], b"key", 0.0)

    first = question()
    piece = first.reader.add(5, text)
    items = [BatchItem(piece.content, piece.reasoning, 5, 1, "stop")]
    cache = AnswerCache(1 << 20)
    cache.put(b"key", items, first.has_reasoning, first.n_reasoning)
    again = Answer(question(), cache.get(b"key"))
    assert again.has_reasoning == first.has_reasoning == (text != "Yes")


# Connections


@pytest.fixture
def port(monkeypatch):
    """Of a server whose one answer is long, comes at once, and is all that is kept of it; with little
    patience."""
    from edge_kit.server import connection

    monkeypatch.setattr(connection, "PATIENCE", 0.2)

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/slow":
            await asyncio.sleep(1)
        for _ in range(100 if scope["path"] == "/long" else 0):
            await send({"type": "http.response.body", "body": b"x" * 100000, "more_body": True})
        await send({"type": "http.response.body", "body": b"end"})

    config = uvicorn.Config(app, http=connection.Connection, lifespan="off", log_config=None)
    running = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    until(lambda: running.started)
    yield listener.getsockname()[1]
    until(lambda: not running.server_state.connections)  # nothing is left of any client
    running.should_exit = True
    thread.join()
    listener.close()


def is_cut(connection) -> bool:
    """Whether the server ends the connection; what it sent is thrown away."""
    try:
        while connection.recv(1 << 20):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /"])
def test_a_client_that_sends_no_whole_head_is_left(port, sent):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(sent)
        assert is_cut(connection)


def test_a_head_that_comes_bit_by_bit_is_not_waited_for(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")

        def is_refused():
            try:
                connection.sendall(b"X: y\r\n")
            except OSError:
                return True

        until(is_refused)


def test_a_client_that_reads_nothing_is_left(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n")
        # It is left while it does not read: 10 MB never came.
        n_read = 0
        threading.Event().wait(1)
        try:
            while part := connection.recv(1 << 20):
                n_read += len(part)
        except ConnectionResetError:
            pass
        assert n_read < 10_000_000


@pytest.mark.parametrize("path", ["/slow", "/"])
def test_who_waits_or_asks_again_is_not_left(port, path):
    """Longer than the patience in all."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for _ in range(2 if path == "/slow" else 12):
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            data = b""
            while not data.endswith(b"0\r\n\r\n"):
                data += connection.recv(65536)
            threading.Event().wait(0.1)
