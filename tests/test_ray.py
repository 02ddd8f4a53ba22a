"""The Ray Serve application with two replicas: sticky sessions, streams, autoscaling, a replica that dies."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from exported import ROOT
from serving import Served, open_stream, until

from lite_runtime.errors import UsageError

NO_RAY = importlib.util.find_spec("ray") is None
pytestmark = [pytest.mark.ray, pytest.mark.skipif(NO_RAY, reason="ray is missing: pip install -e '.[ray]'")]
CLUSTER = Path(__file__).with_name("ray_cluster.py")
SECONDS = 60  # safeguards, no measurements
KEY = "Authorization: Bearer secret"
LONG = {"prompt": "Once", "max_tokens": 6000, "ignore_eos": True, "stop_at_repetition": False, "stream": True}


class Cluster(Served):
    """Served by Ray."""

    key = {"Authorization": "Bearer secret"}

    def running(self) -> list:
        """How many replicas ran, from the beginning on."""
        return [line["running"] for line in self.log() if "running" in line]

    def metrics(self, **headers) -> dict:
        text = self.get("/metrics", **headers)[1]
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    def replica_processes(self) -> list:
        psutil = pytest.importorskip("psutil")
        children = psutil.Process(self.pid).children(recursive=True)
        alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
        return [child for child in alive if child.name().startswith("ray::ServeRepl")]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def cluster(tmp_path, **arguments):
    """A Cluster with its first replicas; behind the block nothing of it runs, whatever happened."""
    psutil = pytest.importorskip("psutil")
    port, log = free_port(), tmp_path / "ray.log"
    with open(log, "w") as file:
        process = subprocess.Popen(
            [sys.executable, str(CLUSTER), str(port), json.dumps(arguments)],
            cwd=ROOT, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    served = Cluster(process, log)
    served.url = f"http://127.0.0.1:{port}"
    started = []
    try:
        until(lambda: process.poll() is not None or max(served.running(), default=0) > 0, SECONDS)
        assert process.poll() is None, served.text()
        yield served
    finally:
        if process.poll() is None:
            started = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS)
        left = psutil.wait_procs(started, timeout=10)[1]
        for each in [*left, process]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                each.kill()
        process.wait()
    assert process.returncode == 0, served.text()
    assert not left, left


@pytest.fixture(scope="module")
def two(native_library, demo_nb, tmp_path_factory):
    options = {"file": str(demo_nb), "min_replicas": 2, "max_replicas": 2, "threads": 1, "api_key": "secret"}
    with cluster(tmp_path_factory.mktemp("ray"), **options) as served:
        until(lambda: max(served.running()) == 2, SECONDS)
        yield served


def n_computed(served, prompt: str, sessions) -> list:
    """Tokens that were computed of a prompt for each of the requests; a session None is not named."""
    computed = []
    for session in sessions:
        headers = served.key if session is None else {"X-Session-Id": session, **served.key}
        status, answer, _ = served.post("/generate", {"prompt": prompt, "max_new_tokens": 2}, **headers)
        assert status == 200
        computed.append(answer["prompt_tokens"] - answer["cached_tokens"])
    return computed


def test_a_session_stays_with_its_replica_and_both_work(two):
    sessions = [f"session-{number}" for number in range(16)]
    for session in sessions:
        # Its cache is where it was; another replica would compute the prompt anew.
        first, *later = n_computed(two, f"{session} " * 20, [session] * 4)
        assert first > 20 and set(later) == {1}
    # A prompt that all share is computed once by each replica.
    computed = n_computed(two, "shared " * 20, sessions)
    assert sum(n > 20 for n in computed) == 2


def test_without_a_session_any_replica_answers(two):
    computed = n_computed(two, "nobody's " * 20, [None] * 24)
    assert sum(n > 20 for n in computed) == 2


def test_requests_pass_as_they_are(two):
    assert two.get("/health")[0] == 200
    assert two.post("/generate", {"prompt": "Hi"})[0] == 401
    status, body, _ = two.post("/generate", {"prompt": "Hi", "max_tokens": "x"}, **two.key)
    assert status == 400 and "max_tokens" in json.dumps(body)
    assert two.get("/metrics", Host="evil.example", **two.key)[0] == 403


def test_events_come_as_they_are_made_and_a_client_that_leaves_frees_its_place(two):
    headers = {"X-Session-Id": "left", **two.key}
    with open_stream(two.url, LONG, "left", SECONDS, KEY)[0]:
        assert two.metrics(**headers)["edge_kit_running_requests"] == 1
    until(lambda: two.metrics(**headers)["edge_kit_running_requests"] == 0, SECONDS)
    ended = {name: value for name, value in two.metrics(**headers).items() if "cancelled" in name}
    assert sum(ended.values()) >= 1, two.metrics(**headers)


def test_a_replica_that_dies_is_replaced(two):
    before = two.replica_processes()
    assert len(before) == 2
    before[0].kill()
    until(lambda: {*two.replica_processes()} - {*before} and two.running()[-1] == 2, SECONDS)
    for number in range(8):
        headers = {"X-Session-Id": f"later-{number}", **two.key}
        assert two.post("/generate", {"prompt": "Hi", "max_new_tokens": 2}, **headers)[0] == 200


def test_replicas_follow_the_load(native_library, demo_nb, tmp_path):
    options = {"upscale_delay": 0.5, "downscale_delay": 1, "look_back": 1, "target_requests": 1, "threads": 1}
    with cluster(tmp_path, file=str(demo_nb), max_replicas=2, **options) as served:
        assert served.running() == [1]
        with contextlib.ExitStack() as streams:
            for number in range(4):
                stream, _ = open_stream(served.url, LONG, f"s{number}", SECONDS, KEY)
                streams.enter_context(stream)
            until(lambda: served.running()[-1] == 2, SECONDS)
        until(lambda: served.running()[-1] == 1, SECONDS)
        assert served.post("/generate", {"prompt": "Hi", "max_new_tokens": 2})[0] == 200


def test_arguments(demo_nb, monkeypatch):
    from edge_kit.server import ray_app

    monkeypatch.setenv("EDGE_KIT_API_KEY", "secret")
    application = ray_app.app({"file": str(demo_nb), "max_batch": "4", "max_replicas": "3", "threads": "2"})
    deployment = application._bound_deployment
    assert deployment.init_args[0].api_key == "secret" and deployment.init_args[0].max_batch == 4
    assert deployment.ray_actor_options["num_cpus"] == 2
    for arguments, said in [
        ({}, "file: "),
        ({"file": "x", "replicas": "2"}, "replicas: "),
        ({"file": "x", "max_batch": "many"}, "max_batch: "),
        ({"file": "x", "max_batch": 0}, "max_batch"),
    ]:
        with pytest.raises(UsageError, match=said):
            ray_app.app(arguments)
