"""Who is let in, and what: hosts, keys, sizes, content types; and what the log and the metrics tell."""

from __future__ import annotations

import http.client
import json
import socket

import pytest
from serving import serve, until

pytest.importorskip("fastapi", reason="needs the serve extra")

HI = {"messages": [{"role": "user", "content": "Hi, my secret is 4711."}], "max_tokens": 2, "temperature": 0}
CHAT = "/v1/chat/completions"
JSON_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server(native_library, demo_nb):
    with serve(demo_nb, "--max-body-mb", 0.01, "--max-prompt-tokens", 100, "--max-new-tokens", 20) as served:
        yield served


@pytest.fixture(scope="module")
def locked(native_library, demo_nb):
    options = ["--api-key", "s3cret", "--allow-host", "box.lan", "--answer-cache-mb", 1, "--log-prompts"]
    with serve(demo_nb, "--name", "little", *options) as served:
        yield served


def raw(server, data: bytes, half_close: bool = True) -> bytes:
    """What comes back for some bytes, until the server closes."""
    host, port = server.url[7:].split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(data)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while True:
            part = connection.recv(65536)
            if not part:
                return answer
            answer += part


@pytest.mark.parametrize(
    "host, status",
    [
        ("127.0.0.1", 200), ("localhost:8000", 200), ("LOCALHOST", 200), ("[::1]:80", 200),
        ("192.168.1.5:8000", 200), ("evil.example", 403), ("evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403), ("localhost.evil.example", 403), ("", 403), ("box.lan", 403),
    ],
)  # fmt: skip
def test_only_addresses_and_localhost_are_hosts(server, host, status):
    assert server.get("/health", Host=host)[0] == status


def test_a_host_may_be_allowed(locked):
    assert locked.get("/health", Host="box.lan:8000")[0] == 200
    assert locked.get("/health", Host="Box.LAN")[0] == 200
    assert locked.get("/health", Host="evil.box.lan")[0] == 403


@pytest.mark.parametrize("key", [None, "Bearer", "Bearer s3cre", "Bearer s3crets", "s3cret", "Basic s3cret"])
def test_without_the_key_nothing_but_health_and_the_page_is_given(locked, key):
    headers = {} if key is None else {"Authorization": key}
    for path in ("/v1/models", "/metrics", "/openapi.json", "/nowhere"):
        status, text = locked.get(path, **headers)
        assert status == 401 and "the API key is missing or wrong" in text
    for path in ("/v1/completions", CHAT, "/generate", "/chat"):
        assert locked.post(path, HI, **headers)[0] == 401
    for path in ("/", "/health", "/web/app.js"):
        assert locked.get(path, **headers)[0] == 200


def test_with_the_key_all_is_given(locked):
    headers = {"Authorization": "Bearer s3cret"}
    assert locked.get("/metrics", **headers)[0] == 200
    assert json.loads(locked.get("/v1/models", **headers)[1])["data"][0]["id"] == "little"
    assert locked.post(CHAT, HI, **headers)[0] == 200


def test_other_pages_may_not_ask(server):
    """A browser asks before it sends JSON to another origin, and without asking it can send no JSON."""
    host, port = server.url[7:].split(":")
    connection = http.client.HTTPConnection(host, int(port))
    preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    connection.request("OPTIONS", CHAT, headers=preflight)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 405 and not [n for n, _ in answer.getheaders() if n.lower().startswith("access")]
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"):
        connection.request("POST", CHAT, json.dumps(HI), {"Content-Type": content_type})
        answer = connection.getresponse()
        assert answer.status == 415 and "application/json" in json.load(answer)["error"]["message"]
    connection.close()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_long_body_is_refused(server, chunked):
    host, port = server.url[7:].split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    body = json.dumps({**HI, "stop": "x" * 20000}).encode()
    headers = {"Content-Type": "application/json"}
    connection.request("POST", CHAT, iter([body]) if chunked else body, headers, encode_chunked=chunked)
    answer = connection.getresponse()
    assert answer.status == 413 and "more than 10485 bytes" in json.load(answer)["error"]["message"]
    connection.close()
    assert server.post(CHAT, HI)[0] == 200


def test_tokens_have_limits(server):
    status, answer, _ = server.post(CHAT, {**HI, "messages": [{"role": "user", "content": "a b " * 100}]})
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
    assert "the limit is 100" in answer["error"]["message"]
    status, answer, _ = server.post(CHAT, {**HI, "max_tokens": 21})
    assert status == 400 and "this server gives 20 at most" in answer["error"]["message"]
    body = {**HI, "ignore_eos": True}
    del body["max_tokens"]
    assert server.post(CHAT, body)[1]["usage"]["completion_tokens"] == 20


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET\r\n\r\n",
        b"GET / HTTX/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999999999999\r\n\r\n",
        b"POST /chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        JSON_HEAD + b"Content-Length: 9\r\n\r\n{",
        bytes(range(256)) * 8,
        b"\0" * 4096,
    ],
)
def test_bytes_that_are_no_request_do_no_harm(server, data):
    answer = raw(server, data)
    assert not answer or answer.split()[1][:1] == b"4"
    assert server.health() == "ready"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"1e999", b'"x"', b"\xff\xfe{}", b"[" * 10000, b'{"a":' * 1900,
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}', b'{"seed": 1' + b"0" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1e3}',
        b'{"messages": [{"role": "\\u0000", "content": "x"}]}', b'{"messages": []}',
        b'{"messages": {"0": 1}}',
        b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"' + b"9" * 3000 + b'": 1}}',
        b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema", '
        b'"json_schema": {"name": "n", "schema": {"$ref": "#"}}}, "max_tokens": 3}',
        b'{"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema", '
        b'"json_schema": {"name": "n", "schema": {"type": "nothing"}}}, "max_tokens": 3}',
    ],
)  # fmt: skip
def test_bodies_that_cannot_be_used_are_the_clients_fault(server, body):
    data = JSON_HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    answer = raw(server, data, half_close=False)
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.split()[1][:1] == b"4", answer
    message = json.loads(rest)["error"]["message"]
    assert message and len(message) < 1100 and "Traceback" not in server.text()


def test_a_session_has_a_name_of_some_length(server):
    assert server.post(CHAT, HI, **{"X-Session-Id": "a" * 128})[0] == 200
    for name in ("a" * 129, " ", "", "\t"):
        assert server.post(CHAT, HI, **{"X-Session-Id": name})[0] == (
            400 if name.strip() or name == "" else 400
        )


def test_the_log_tells_of_requests_and_not_of_prompts(server):
    server.post(CHAT, HI)
    (line, *_) = [line for line in server.log() if line.get("generated_tokens") == 2][-1:]
    assert (line["method"], line["path"], line["status"]) == ("POST", CHAT, 200)
    assert line["finish_reason"] == "length" and line["prompt_tokens"] > 2 and line["seconds"] > 0
    assert "4711" not in server.text()


def test_the_log_tells_prompts_when_it_is_told_to(locked):
    locked.post(CHAT, HI, Authorization="Bearer s3cret")
    line = until(lambda: [line for line in locked.log() if "4711" in line.get("prompt", "")])[0]
    assert line["answer"] and "s3cret" not in locked.text()


def test_an_answer_is_given_again_from_the_answer_cache(locked):
    headers = {"Authorization": "Bearer s3cret"}

    def hits():
        samples = locked.get("/metrics", **headers)[1]
        return float(samples.split("\nedge_kit_answer_cache_hits_total ")[1].split("\n")[0])

    body = {**HI, "max_tokens": 9, "logprobs": True}
    first = locked.post(CHAT, body, **headers)[1]
    before = hits()
    again = locked.post(CHAT, body, **headers)[1]
    assert hits() == before + 1 and again["choices"] == first["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == again["usage"]["prompt_tokens"]
    for other in (
        {"max_tokens": 8},
        {"stop": "x"},
        {"logit_bias": {"5": 1}},
        {"temperature": 0.5},
        {"logprobs": False},
    ):
        locked.post(CHAT, {**body, **other}, **headers)
    assert hits() == before + 1
