"""The load generator: its arithmetic, its reading of streams, and load on real servers and on broken ones."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import threading

import pytest
from exported import ROOT
from serving import serve

import lite_runtime
from benchmarks import load, load_memory
from benchmarks.load_client import EventParser, Server
from benchmarks.load_figures import percentiles, slope
from benchmarks.load_prompts import WORDS, Prompts, arrivals
from lite_runtime.errors import UsageError

EVENTS = [
    'data: {"a": "é\\n"}\n\n',
    ": a comment\n\n",
    "event: x\ndata: one\ndata: two\r\n\r\n",
    "data:[DONE]\n\n",
]


@pytest.fixture(scope="module")
def server(native_library, demo_nb):
    pytest.importorskip("fastapi", reason="needs the serve extra")
    with serve(demo_nb, "--threads", 1, "--n-ctx", 256) as served:
        yield served


@pytest.fixture(scope="module")
def unbatched(native_library, demo_nb):
    pytest.importorskip("fastapi", reason="needs the serve extra")
    with serve(demo_nb, "--threads", 1, "--n-ctx", 256, "--max-batch", 1) as served:
        yield served


def report(capsys, tmp_path, *options, status=0) -> tuple:
    """(what --json holds, what was printed)."""
    path = tmp_path / "load.json"
    arguments = [*map(str, options), "--json", str(path)]
    assert load.main(arguments) == status, capsys.readouterr()
    return json.loads(path.read_text()), capsys.readouterr().out


def error_of(capsys, *options) -> str:
    assert load.main([str(option) for option in options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_however_their_bytes_come(size):
    data = "".join(EVENTS).encode()
    parser, found = EventParser(), []
    for start in range(0, len(data), size):
        found += parser.feed(data[start : start + size])
    assert found == ['{"a": "é\\n"}', "one\ntwo", "[DONE]"]


def test_an_event_that_is_not_ended_is_none():
    assert EventParser().feed(b"data: half\n") == []


def test_percentiles_are_in_milliseconds_between_the_nearest_two():
    found = percentiles([i / 1000 for i in range(101)])
    assert found == pytest.approx({"mean": 50, "p50": 50, "p95": 95, "p99": 99})
    assert percentiles([0.001, 0.002])["p50"] == pytest.approx(1.5)
    assert percentiles([]) is None


def test_a_slope_is_not_tilted_by_a_few_points_aside():
    assert slope([(x, 3 * x + 7) for x in range(10)]) == pytest.approx(3)
    assert slope([(0, 0), (1, 2), (2, 1)]) == pytest.approx(0.5)
    assert slope([(x, 3 * x - 900 * (x in (2, 17))) for x in range(20)]) == pytest.approx(3)
    assert slope([(x, x // 5) for x in range(100)]) == pytest.approx(0.2, rel=0.05)  # a leak by steps
    assert slope([(5, 1), (5, 2)]) is None and slope([(1, 1)]) is None and slope([]) is None


def test_arrivals_are_a_poisson_process_at_just_the_rate():
    times = arrivals(5, 10_000, 1)
    assert times == sorted(times) and 0 <= times[0] and times[-1] < 2000
    gaps = [later - earlier for earlier, later in zip(times, times[1:])]
    assert statistics.mean(gaps) == pytest.approx(1 / 5, rel=0.02)
    # Exponential: as wide as long, and a share of 1 / e is longer than the mean.
    assert statistics.stdev(gaps) == pytest.approx(1 / 5, rel=0.05)
    assert sum(gap > 1 / 5 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.02)
    assert arrivals(5, 100, 1) == arrivals(5, 100, 1) != arrivals(5, 100, 2)
    assert arrivals(10, 100, 1) == pytest.approx([moment / 2 for moment in arrivals(5, 100, 1)])


def test_prompts_have_the_length_that_the_server_counts_and_no_beginning_in_common():
    prompts = Prompts(20, lambda text: len(text.split()) + 3)
    texts = [prompts.text(index) for index in range(1000)]
    assert {len(text.split()) for text in texts} == {17}
    assert len({text.split()[0] for text in texts[:100]}) == 100
    assert len({tuple(text.split()[:2]) for text in texts}) == 1000
    assert texts == [prompts.text(index) for index in range(1000)]
    assert texts[0] != Prompts(20, lambda text: len(text.split()) + 3, seed=1).text(0)


def test_each_word_is_one_token_at_the_beginning_and_behind_another(native_library, demo_nb):
    with lite_runtime.load(demo_nb, n_ctx=16) as model:
        encode = model.text.tokenizer.encode
        for word in WORDS:
            lengths = [len(encode(text, add_special_tokens=False).ids) for text in (word, f" {word}")]
            assert lengths == [1, 1], word


def test_prompts_begin_alike_where_that_is_asked_for():
    prompts = Prompts(20, lambda text: len(text.split()), n_shared=12)
    first, second = (prompts.text(index).split() for index in range(2))
    assert first[:12] == second[:12] and first[12:] != second[12:] and len(first) == 20


def test_words_that_are_no_token_each_are_said():
    with pytest.raises(UsageError, match=r"makes 19, 21, 19, 21 tokens of texts that should have 20"):
        Prompts(20, lambda text: 19 if len(text.split()) % 2 == 0 else 21)
    with pytest.raises(UsageError, match=r"4 prompt tokens leave no words to vary \(one of 4 words"):
        Prompts(4, lambda text: len(text.split()) + 8)


@pytest.mark.parametrize("route", ["completions", "chat"])
def test_load_together_gives_each_its_tokens_and_the_same_texts_as_one_after_another(
    server, unbatched, capsys, tmp_path, route
):
    options = ["--together", 4, "--prompt-tokens", 40, "--new-tokens", 6, "--route", route]
    found, printed = report(capsys, tmp_path, "--url", server.url, *options)
    assert found["answered"] == 4 and not found["errors"]
    assert found["wrong_prompt_length"] == found["wrong_answer_length"] == 0
    assert found["new_tokens"] == 24 and found["tokens_per_s"] == pytest.approx(24 / found["seconds"])
    assert found["first_token_ms"]["p99"] <= found["request_ms"]["p99"]
    assert f"checksum {found['checksum']}" in printed and "4 of 4 requests answered" in printed
    single, _ = report(capsys, tmp_path, "--url", unbatched.url, *options)
    assert single["checksums"] == found["checksums"] and len(set(found["checksums"].values())) > 1
    other, _ = report(capsys, tmp_path, "--url", unbatched.url, *options, "--seed", 1)
    assert other["checksum"] != found["checksum"]


def test_load_at_a_rate_sends_all_and_a_shared_beginning_is_found_in_the_cache(server, capsys, tmp_path):
    options = ["--url", server.url + "/v1", "--rate", 10, "--new-tokens", 2, "--prompt-tokens", 100]
    found, _ = report(capsys, tmp_path, *options, "--requests", 10, "--seed", 2)
    assert found["answered"] == found["requests"] == 10 and found["new_tokens"] == 20
    assert found["cached_tokens"] < 50  # a first word or two that other tests' prompts have, too
    found, _ = report(capsys, tmp_path, *options, "--seconds", 1, "--shared-tokens", 80, "--seed", 3)
    assert found["answered"] == 10 and found["wrong_prompt_length"] == 0 and found["cached_tokens"] > 300


def test_a_soak_watches_the_memory_of_the_process_and_of_the_metrics(server, capsys, tmp_path):
    options = ["--soak", 4, "--together", 2, "--prompt-tokens", 16, "--new-tokens", 2, "--url", server.url]
    options += ["--most-growth", 1e6]  # four seconds do not tell
    found, printed = report(capsys, tmp_path, *options, "--pid", server.pid)
    memory = found["memory"]
    assert found["answered"] == found["requests"] > 4 and memory["source"] == f"process {server.pid}"
    assert memory["samples"] >= 3 and memory["resident_mb"] > 1 and "resident_mb_per_1000" in memory
    assert re.search(r"Memory .* MB per 1,000 requests\.", printed)
    assert load_memory.resident(server.pid)["resident"] == pytest.approx(memory["resident_mb"] * 1e6, rel=0.5)
    by_rate = [*options[:2], "--rate", 10, *options[4:]]
    found, _ = report(capsys, tmp_path, *by_rate)
    assert found["answered"] == 40 and found["memory"]["source"] == "/metrics"
    assert found["memory"]["resident_mb"] > 1


def test_a_soak_of_a_minute_finds_no_leak(native_library, demo_nb, capsys, tmp_path):
    with serve(demo_nb, "--cache-mb", 4) as served:
        options = ["--soak", 60, "--together", 4, "--prompt-tokens", 8, "--new-tokens", 2]
        found, _ = report(capsys, tmp_path, "--url", served.url, "--pid", served.pid, *options)
        assert found["answered"] == found["requests"] > 1000
        assert served.metrics()["edge_kit_running_requests"] == 0
    memory = found["memory"]
    assert memory["requests"] > 600 and memory["private_mb_per_1000"] < 1, memory
    assert load_memory.is_steady(memory, 1.0)


def test_a_soak_is_judged_by_what_is_private(capsys):
    found = {"resident_mb_per_1000": 5.0, "private_mb_per_1000": 0.5}
    assert load_memory.is_steady(found, 1.0) and not load_memory.is_steady(found, 0.4)
    assert not load_memory.is_steady({"resident_mb_per_1000": 5.0}, 1.0)
    assert not load_memory.is_steady({"resident_mb_per_1000": None}, 1.0)


def test_requests_that_a_full_server_refuses_are_counted(native_library, demo_nb, capsys, tmp_path):
    pytest.importorskip("fastapi", reason="needs the serve extra")
    with serve(demo_nb, "--threads", 1, "--n-ctx", 256, "--max-batch", 1, "--max-queue", 1) as served:
        options = ["--url", served.url, "--together", 6, "--new-tokens", 64]
        found, printed = report(capsys, tmp_path, *options, status=1)
    assert found["errors"]["HTTP 429"] >= 1
    assert found["answered"] + found["errors"]["HTTP 429"] == 6 and found["answered"] >= 1
    assert "Errors: HTTP 429:" in printed


def test_a_server_that_dies_amid_a_stream_is_an_error_and_ends_the_load(
    native_library, demo_nb, capsys, tmp_path
):
    pytest.importorskip("fastapi", reason="needs the serve extra")
    with serve(demo_nb, "--threads", 1, "--n-ctx", 2000) as served:
        aim = load.Load(served.url, 16, 1900)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(aim.ask(0, 0.0)))
        thread.start()
        while not served.metrics().get("edge_kit_generated_tokens_total", 0) > 20:
            pass
        served.process.kill()
        thread.join(60)
        assert not thread.is_alive()
        assert answers[0].error in ("stream cut off", "connection lost") and len(answers[0].times) > 5
        after = aim.open_loop([0.0, 0.0])
        assert after["errors"] == {"connection refused": 2} and after["first_token_ms"] is None


@contextlib.contextmanager
def scripted(*answers):
    """The address of a socket that gives these bytes, one to each connection, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run():
            for answer in answers:
                with listener.accept()[0] as connection, connection.makefile("rb") as request:
                    # All of it: a connection that is closed with bytes unread is reset.
                    length = 0
                    for line in iter(request.readline, b"\r\n"):
                        if line.lower().startswith(b"content-length:"):
                            length = int(line.split(b":")[1])
                    request.read(length)
                    connection.sendall(answer)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


@pytest.mark.parametrize(
    "stream, kind",
    [
        ('data: {"choices": [{"text": "a"}]}\n\n', "stream cut off"),
        ('data: {"error": {"message": "no"}}\n\n', "error in the stream"),
        ("data: {no json}\n\n", "unreadable event"),
        ("data: 7\n\n", "unreadable event"),
        ('data: {"choices": [{"text": 3}]}\n\n', "unreadable event"),
    ],
)
def test_a_stream_that_is_no_answer_is_an_error_of_its_kind(stream, kind):
    head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    with scripted((head + stream).encode()) as url:
        answer = load.Answer(0, 0.0)
        Server(url, timeout=10).ask(answer, "hello", 1)
    assert answer.error == kind


def test_no_server_and_no_such_server_are_said_in_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--together", 1, "--url"]
    assert error_of(capsys, *options, f"http://127.0.0.1:{port}") == "load: error: connection refused"
    with scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as url:
        assert "/v1/models is no list of models" in error_of(capsys, *options, url)
    with scripted(b"SSH-2.0\r\n") as url:
        assert error_of(capsys, *options, url).startswith("load: error: connection lost: BadStatusLine")


def test_a_wrong_key_or_field_is_told_with_the_servers_status(native_library, demo_nb, server, capsys):
    with serve(demo_nb, "--threads", 1, "--n-ctx", 256, "--api-key", "secret") as served:
        options = ["--url", served.url, "--together", 1, "--new-tokens", 2]
        assert "HTTP 401" in error_of(capsys, *options, "--api-key", "other")
        assert load.main([*map(str, options), "--api-key", "secret"]) == 0
    capsys.readouterr()
    fields = ["--fields", '{"no_such_field": 1}']
    assert "HTTP 4" in error_of(capsys, "--url", server.url, "--together", 1, *fields)


@pytest.mark.parametrize(
    "options, message",
    [
        ([], "one of --rate and --together"),
        (["--rate", "1", "--together", "1"], "one of --rate and --together"),
        (["--together", "1", "--requests", "5"], "--requests and --seconds go with --rate"),
        (["--rate", "1", "--requests", "5", "--seconds", "5"], "give one of them"),
        (["--rate", "0"], "expected a number above 0"),
        (["--rate", "nan"], "expected a number above 0"),
        (["--together", "0"], "expected an integer of at least 1"),
        (["--together", "1", "--pid", "1"], "--pid goes with --soak"),
        (["--together", "1", "--fields", "[]"], "expected a JSON object"),
        (["--together", "1", "--rout", "chat"], "did you mean '--route'?"),
        (["--together", "1", "--url", "ftp://host"], "expected http://HOST:PORT"),
        (["--together", "1", "--url", "http://host:port"], "--url http://host:port"),
        (["--together", "1", "--json", "/no/such/folder/x.json"], "/no/such/folder"),
    ],
)
def test_wrong_options_are_said_in_one_line(capsys, options, message):
    line = error_of(capsys, "--url", "http://127.0.0.1:9", *options)
    assert line.startswith("load: error: ") and message in line


def test_the_memory_of_a_process_that_is_gone_is_an_error(server, capsys):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        options = ["--url", server.url, "--together", 1, "--soak", 1, "--pid", process.pid]
        assert str(process.pid) in error_of(capsys, *options)


def test_it_runs_as_a_script_from_anywhere(tmp_path):
    command = [sys.executable, os.path.join(ROOT, "benchmarks", "load.py"), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "--together" in done.stdout
