"""A Ray of two processors with the application, until SIGTERM: ray_cluster.py PORT ARGUMENTS_AS_JSON

Writes one line of JSON whenever the number of running replicas changes, and one when it has ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_SERVE_ENABLE_TASK_EVENTS="0")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import ray  # noqa: E402
from ray import serve  # noqa: E402

from edge_kit.server.ray_app import app  # noqa: E402


def n_running() -> int:
    deployments = serve.status().applications["default"].deployments
    return deployments["edge-kit"].replica_states.get("RUNNING", 0)


def main(port: int, arguments: dict) -> None:
    # A short path: sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        run(port, arguments, folder)
    print(json.dumps({"ended": True}), flush=True)


def run(port: int, arguments: dict, folder: str) -> None:
    stop = threading.Event()
    ray.init(
        num_cpus=2, object_store_memory=100_000_000, include_dashboard=False, _temp_dir=folder,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: stop.set())  # in place of Ray's, which ends the program
    try:
        serve.start(http_options={"port": port})
        serve.run(app(arguments))
        shown, parent = None, os.getppid()
        while not stop.wait(0.2) and os.getppid() == parent:  # it goes when the tests were killed
            if shown != (running := n_running()):
                shown = running
                print(json.dumps({"running": running}), flush=True)
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
