"""Loading, full, deadlines, clients that leave in every phase, and the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from exported import ROOT
from serving import serve, until

pytest.importorskip("fastapi", reason="needs the serve extra")
httpx = pytest.importorskip("httpx", reason="needs the dev extra")

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0}
LONG = {**HI, "max_tokens": 4000, "ignore_eos": True, "stop_at_repetition": False}
CANCELLED = 'edge_kit_requests_ended_total{reason="cancelled"}'


@pytest.fixture(scope="module")
def server(native_library, demo_nb):
    """One place, and one to wait."""
    with serve(demo_nb, "--max-batch", 1, "--max-queue", 1, "--prefill-chunk", 8) as served:
        yield served


@pytest.fixture
def idle(server):
    """The server, and a check that nothing is left of a test."""
    yield server
    until(lambda: server.metrics()["edge_kit_running_requests"] == 0)
    until(lambda: server.metrics()["edge_kit_queue_requests"] == 0)
    assert server.health() == "ready" and server.post(CHAT, HI)[0] == 200
    assert "Traceback" not in server.text()


class Client:
    """A connection that sends a request and may be cut at any time."""

    def __init__(self, server, body: dict, send_all: bool = True):
        host, port = server.url[7:].split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        data = json.dumps(body).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        self._socket.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(data))
        self._socket.sendall(data if send_all else data[:-1])

    def read(self) -> bytes:
        return self._socket.recv(65536)

    def leave(self) -> None:
        # With unread bytes or by a reset, as a process that is killed leaves.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._socket.close()


def running(server) -> int:
    return server.metrics()["edge_kit_running_requests"]


def test_before_the_model_is_there_nothing_is_answered(demo_nb):
    from edge_kit.server.app import create_app
    from edge_kit.server.settings import Settings

    async def ask():
        transport = httpx.ASGITransport(create_app(Settings(str(demo_nb))))  # which starts no lifespan
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [
                await client.get("/health"),
                await client.get("/v1/models"),
                await client.post(CHAT, json=HI),
            ]

    health, models, chat = asyncio.run(ask())
    assert health.status_code == 503 and health.json()["status"] == "loading"
    for answer in (models, chat):
        assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"
        assert answer.json()["error"]["code"] == "loading"


def test_a_full_server_refuses_and_tells_when_to_come_again(idle):
    first = Client(idle, {**LONG, "stream": True})
    until(lambda: running(idle) == 1)
    second = Client(idle, LONG)
    until(lambda: idle.metrics()["edge_kit_queue_requests"] == 1)
    assert idle.health() == "overloaded" and idle.get("/health")[0] == 503
    status, answer, headers = idle.post(CHAT, HI)
    assert status == 429 and int(headers["Retry-After"]) >= 1 and answer["error"]["code"] == "overloaded"
    assert idle.metrics()['edge_kit_requests_ended_total{reason="refused"}'] >= 1
    first.leave()
    second.leave()


def test_a_deadline_ends_an_answer(idle):
    status, answer, _ = idle.post(CHAT, {**LONG, "timeout": 0.5})
    (choice,) = answer["choices"]
    assert status == 200 and (choice["finish_reason"], choice["edge_finish_reason"]) == (
        "length",
        "cancelled",
    )
    assert 1 <= answer["usage"]["completion_tokens"] < 4000


def test_a_deadline_holds_in_the_queue(idle):
    first = Client(idle, {**LONG, "stream": True})
    until(lambda: running(idle) == 1)
    for stream in (False, True):
        status, answer, _ = idle.post(CHAT, {**HI, "timeout": 0.2, "stream": stream})
        assert status == 408 and answer["error"]["code"] == "timeout"
    first.leave()


PROMPT = {
    **LONG,
    "messages": [{"role": "user", "content": "one two three four five " * 300}],
}  # of many steps


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["body", "queue", "prefill", "answer"])
def test_a_client_that_is_killed_frees_its_place(idle, phase, stream):
    others = []
    if phase == "queue":
        others.append(Client(idle, {**LONG, "stream": True}))
        until(lambda: running(idle) == 1)
    before = idle.metrics().get(CANCELLED, 0)
    body = {**(PROMPT if phase == "prefill" else LONG), "stream": stream}
    client = Client(idle, body, send_all=phase != "body")
    left = 'edge_kit_http_requests_total{route="other",status="left"}'
    n_left = idle.metrics().get(left, 0)
    if phase == "body":
        time.sleep(0.1)
    elif phase == "queue":
        until(lambda: idle.metrics()["edge_kit_queue_requests"] == 1)
    else:
        until(lambda: running(idle) == 1)
    if phase == "answer":
        generated = idle.metrics()["edge_kit_generated_tokens_total"]
        until(lambda: idle.metrics()["edge_kit_generated_tokens_total"] > generated + 3)
    client.leave()
    if phase == "body":
        until(lambda: idle.metrics().get(left, 0) == n_left + 1)
    else:
        until(lambda: idle.metrics().get(CANCELLED, 0) == before + 1)
    assert running(idle) == len(others)
    for other in others:
        other.leave()


def test_clients_that_come_and_go_leave_nothing_behind(idle):
    def n_files():
        return len(os.listdir(f"/proc/{idle.pid}/fd"))

    before = n_files()
    for k in range(60):
        client = Client(idle, {**LONG, "stream": k % 2 == 0}, send_all=k % 5 != 0)
        time.sleep(0.003 * (k % 7))
        client.leave()
    until(lambda: n_files() <= before + 2)


def test_it_ends_when_the_running_answers_have(native_library, demo_nb):
    with serve(demo_nb, "--max-batch", 1) as served:
        answers = []
        body = {**LONG, "max_tokens": 300}
        ask = [threading.Thread(target=lambda: answers.append(served.post(CHAT, body))) for _ in range(2)]
        ask[0].start()
        until(lambda: running(served) == 1)
        ask[1].start()
        until(lambda: served.metrics()["edge_kit_queue_requests"] == 1)
        served.process.send_signal(signal.SIGTERM)
        until(lambda: served.health() == "stopping")
        status, answer, _ = served.post(CHAT, HI)
        assert status == 503 and answer["error"]["code"] == "shutting_down"
        for thread in ask:
            thread.join(60)
        by_status = dict((status, answer) for status, answer, _ in answers)
        assert by_status.keys() == {200, 503}  # the one that ran, and the one that waited
        assert by_status[200]["usage"]["completion_tokens"] == 300
        assert served.process.wait(20) == 0
        assert "Traceback" not in served.text()


@pytest.mark.parametrize("options, n_signals", [(["--grace", "0.3"], 1), ([], 2)])
def test_it_ends_at_once_when_it_is_told_so(native_library, demo_nb, options, n_signals):
    with serve(demo_nb, *options) as served:
        client = Client(served, {**LONG, "stream": True})
        assert b"200 OK" in client.read()
        for _ in range(n_signals):
            served.process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        assert served.process.wait(10) == 0
        assert "Traceback" not in served.text()
        client.leave()


def fails(*arguments) -> str:
    command = [sys.executable, "-m", "edge_kit", "serve", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("edge-kit: error: ")]
    assert len(errors) == 1
    return errors[0]


def test_what_it_cannot_start_with(server, tmp_path, demo_nb):
    assert "nothing.nb" in fails(tmp_path / "nothing.nb", "--port", 0)
    (tmp_path / "text.nb").write_text("no model\n" * 100)
    assert "text.nb" in fails(tmp_path / "text.nb", "--port", 0)
    port = server.url.rsplit(":", 1)[1]
    assert f"cannot listen on 127.0.0.1 port {port}" in fails(demo_nb, "--port", port)
    assert "port 70000, expected" in fails(demo_nb, "--port", 70000)
    assert "cannot listen on no.such.host.invalid" in fails(demo_nb, "--host", "no.such.host.invalid")
    assert "deadline" in fails(demo_nb, "--deadline", 0)
    assert "deadline" in fails(demo_nb, "--deadline", "nan")
    assert "--grace nan, expected seconds" in fails(demo_nb, "--grace", "nan")
    assert "API key" in fails(demo_nb, "--api-key", "a b")
    assert "API key" in fails(demo_nb, "--api-key", "")
