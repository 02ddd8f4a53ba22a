"""Requests made up from the OpenAPI file, most of them wrong; and a server's memory over many requests."""

from __future__ import annotations

import json
import random
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from serving import serve, until

from lite_runtime import device

pytest.importorskip("fastapi", reason="needs the serve extra")
schemathesis = pytest.importorskip("schemathesis", reason="needs the dev extra")

POSTS = ("/v1/chat/completions", "/v1/completions", "/generate", "/chat")
WRONG, RIGHT = 110, 25  # of each route; wrong ones are 500 with the raw ones
RAW = 60
LEAK = 16 << 20  # bytes over a hundred requests; a step's memory goes up and down by some ten


@pytest.fixture(scope="module")
def server(native_library, demo_nb):
    with serve(demo_nb, "--max-new-tokens", 8, "--cache-mb", 8) as served:
        # llguidance reads the vocabulary once.
        body = {"messages": [{"role": "user", "content": "Hi"}], "response_format": {"type": "json_object"}}
        assert served.post(POSTS[0], body)[0] == 200
        yield served
        assert served.health() == "ready" and "Traceback" not in served.text()


@pytest.fixture(scope="module")
def schema(server):
    return schemathesis.openapi.from_url(server.url + "/openapi.json")


def own_memory(server) -> int:
    """Resident bytes that are no file's: of the model's, each new token makes another part resident."""
    return device.sizes(f"/proc/{server.pid}/status")["RssAnon"]


def n_served(server) -> float:
    return sum(n for name, n in server.metrics().items() if name.startswith("edge_kit_http_requests_total"))


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("mode", ["negative", "positive"])
def test_made_up_requests_never_fail_the_server(server, schema, path, mode):
    operation = schema[path]["POST"]
    seen = set()

    @settings(
        max_examples=WRONG if mode == "negative" else RIGHT,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    def ask(case):
        answer = case.call(timeout=30)
        seen.add(answer.status_code)
        assert answer.status_code < 500, answer.text

    requests, sizes = n_served(server), []
    for _ in range(3):  # the same ones; a leak would grow each time
        ask()
        sizes.append(own_memory(server))
    assert min(after - before for before, after in zip(sizes, sizes[1:])) < LEAK
    assert n_served(server) - requests >= (WRONG if mode == "negative" else RIGHT)
    # Of "messages" and "prompt", /generate takes one: the OpenAPI file does not say so.
    assert 200 in seen if mode == "positive" and path != "/generate" else 400 in seen


def test_raw_bytes_never_fail_the_server(server):
    """A right request with some bytes lost, doubled or changed."""
    generator = random.Random(11)
    host, port = server.url[7:].split(":")
    body = json.dumps({"messages": [{"role": "user", "content": "Hi 你好"}], "max_tokens": 2}).encode()
    head = (
        f"POST {POSTS[0]} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    before, statuses = own_memory(server), set()
    for _ in range(RAW):
        data = bytearray(request)
        for _ in range(generator.choice([1, 2, 5, 40])):
            at = generator.randrange(len(data))
            kind = generator.randrange(3)
            data[at : at + 1] = (b"", data[at : at + 1] * 2, bytes([generator.randrange(256)]))[kind]
        with socket.create_connection((host, int(port)), timeout=0.5) as connection:
            connection.sendall(data)
            try:
                answer = connection.recv(65536)
            except TimeoutError:  # it waits for the rest
                answer = b""
        if answer:
            statuses.add(int(answer.split()[1]))
    assert statuses and all(status < 500 for status in statuses)
    until(lambda: server.metrics()["edge_kit_running_requests"] == 0)
    assert own_memory(server) - before < LEAK
