"""The nginx example over two servers: sticky sessions, streams, full, ending and dead servers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess

import pytest
from exported import ROOT
from serving import Served, open_stream, serve, until

NO_NGINX = shutil.which("nginx") is None
pytestmark = [pytest.mark.nginx, pytest.mark.skipif(NO_NGINX, reason="no nginx: apt install nginx-light")]
EXAMPLE = ROOT / "edge_kit" / "server" / "examples" / "nginx" / "nginx.conf"
LONG = {"prompt": "Once", "max_tokens": 600, "ignore_eos": True, "stop_at_repetition": False, "stream": True}
SECONDS = 60  # a safeguard, no measurement


def port_of(served) -> int:
    return int(served.url.rsplit(":", 1)[1])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def nginx(folder, first, second):
    """A Served: the example with these two servers' ports and a free one of its own."""
    port, text = free_port(), EXAMPLE.read_text()
    for written, used in ((8080, port), (8001, port_of(first)), (8002, port_of(second))):
        assert text.count(f"127.0.0.1:{written}") == 1
        text = text.replace(f"127.0.0.1:{written}", f"127.0.0.1:{used}")
    conf, log = folder / "nginx.conf", folder / "nginx.log"
    conf.write_text(text)
    directives = "daemon off; master_process off;" + (" user root;" if os.geteuid() == 0 else "")
    with open(log, "w") as file:
        command = ["nginx", "-p", f"{folder}/", "-c", str(conf), "-g", directives]
        process = subprocess.Popen(command, stdout=file, stderr=file)
    served = Served(process, log)
    served.url = f"http://127.0.0.1:{port}"
    try:

        def listens():
            assert process.poll() is None, served.text()
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                return True

        until(listens)
        yield served
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def two(native_library, demo_nb):
    with serve(demo_nb, "--threads", 1) as first, serve(demo_nb, "--threads", 1) as second:
        yield first, second


@pytest.fixture(scope="module")
def front(two, tmp_path_factory):
    with nginx(tmp_path_factory.mktemp("nginx"), *two) as front:
        yield front


def n_requests(served) -> float:
    """Answered with 200 by /generate."""
    return served.metrics().get('edge_kit_http_requests_total{route="/generate",status="200"}', 0.0)


def ask(front, session=None, **body) -> tuple:
    headers = {} if session is None else {"X-Session-Id": session}
    return front.post("/generate", {"prompt": "Hi", "max_new_tokens": 2, **body}, **headers)


def sessions_of(front, two) -> tuple:
    """For each of the two servers a session that goes there."""
    found = {}
    for number in range(64):
        before = [n_requests(served) for served in two]
        assert ask(front, f"s{number}")[0] == 200
        after = [n_requests(served) for served in two]
        found[after[0] > before[0]] = f"s{number}"
        if len(found) == 2:
            return found[True], found[False]
    raise AssertionError("all 64 sessions went to one server")


def rest_of(stream) -> bytes:
    """Until its end, be it a good one or not."""
    got = b""
    while not got.endswith(b"0\r\n\r\n"):
        part = stream.recv(1 << 16)
        if not part:
            break
        got += part
    return got


def running(served) -> float:
    return served.metrics()["edge_kit_running_requests"]


def test_nginx_takes_the_example_as_it_is(tmp_path):
    command = ["nginx", "-t", "-p", f"{tmp_path}/", "-c", str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0 and "test is successful" in done.stderr, done.stderr


def test_a_session_stays_with_its_server(front, two):
    owners = set()
    for number in range(12):
        before = [n_requests(served) for served in two]
        for _ in range(4):
            assert ask(front, f"session-{number}")[0] == 200
        counts = tuple(n_requests(served) - n for served, n in zip(two, before))
        assert sorted(counts) == [0, 4]
        owners.add(counts)
    assert len(owners) == 2


def test_without_a_session_both_answer(front, two):
    before = [n_requests(served) for served in two]
    for _ in range(24):
        assert ask(front)[0] == 200
    counts = [n_requests(served) - n for served, n in zip(two, before)]
    assert sum(counts) == 24 and min(counts) > 0


def test_what_servers_say_passes(front):
    assert front.get("/")[0] == front.get("/health")[0] == 200
    status, body, _ = ask(front, max_new_tokens="x")
    assert status == 400 and "max_new_tokens" in json.dumps(body)
    assert front.get("/health", Host="evil.example")[0] == 403
    status, body, _ = ask(front, prompt="x" * (3 << 19))
    assert status == 413 and "the limit here" in json.dumps(body)
    with pytest.raises(json.JSONDecodeError):  # nginx's own page
        ask(front, prompt="x" * (5 << 19))


def test_events_come_as_they_are_made_and_a_client_that_leaves_frees_its_place(front, two):
    mine, _ = sessions_of(front, two)
    stream, got = open_stream(front.url, LONG, mine, SECONDS)
    with stream:
        assert running(two[0]) == 1 and b"[DONE]" not in got
    until(lambda: running(two[0]) == 0, SECONDS)
    assert two[0].metrics()['edge_kit_requests_ended_total{reason="cancelled"}'] >= 1


def test_a_full_server_says_429_and_keeps_its_sessions(native_library, demo_nb, tmp_path):
    options = ("--threads", 1, "--max-batch", 1, "--max-queue", 0)
    with serve(demo_nb, *options) as first, serve(demo_nb, *options) as second:
        with nginx(tmp_path, first, second) as front:
            mine, other = sessions_of(front, (first, second))
            stream, _ = open_stream(front.url, LONG, mine, SECONDS)
            with stream:
                status, _, headers = ask(front, mine)
                assert status == 429 and int(headers["Retry-After"]) >= 1
                assert front.get("/health", **{"X-Session-Id": mine})[0] == 503
                before = n_requests(second)
                assert ask(front, mine)[0] == 429 and ask(front, other)[0] == 200
                assert n_requests(second) == before + 1
            until(lambda: running(first) == 0, SECONDS)
            before = n_requests(first)
            assert ask(front, mine)[0] == 200 and n_requests(first) == before + 1


def test_a_server_that_ends_or_dies_is_taken_out(native_library, demo_nb, tmp_path):
    with serve(demo_nb, "--threads", 1) as second:
        with serve(demo_nb, "--threads", 1) as first, nginx(tmp_path, first, second) as front:
            mine, other = sessions_of(front, (first, second))
            stream, _ = open_stream(front.url, LONG, mine, SECONDS)
            with stream:
                first.process.send_signal(signal.SIGTERM)
                until(lambda: first.health() == "stopping", SECONDS)
                before = n_requests(second)
                assert ask(front, mine)[0] == 200 and n_requests(second) == before + 1
                assert b"[DONE]" in rest_of(stream)  # what ran has ended well
            first.process.wait(SECONDS)
            assert {ask(front, session)[0] for session in (mine, other, None) for _ in range(5)} == {200}


def test_a_server_that_is_killed(native_library, demo_nb, tmp_path):
    with serve(demo_nb, "--threads", 1) as second:
        with serve(demo_nb, "--threads", 1) as first, nginx(tmp_path, first, second) as front:
            mine, _ = sessions_of(front, (first, second))
            stream, _ = open_stream(front.url, LONG, mine, SECONDS)
            with stream:
                first.process.kill()
                assert b"[DONE]" not in rest_of(stream)  # cut, and the client sees that
            assert {ask(front, session)[0] for session in (mine, None) for _ in range(10)} == {200}
