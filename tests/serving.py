"""`edge-kit serve` as a process of its own, for tests."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from exported import ROOT


class Served:
    """A running server. url: without a slash at the end. process: Popen."""

    def __init__(self, process, log):
        self.process, self._log = process, log
        self.url = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> list:
        """The lines of its log that are JSON."""
        with open(self._log, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.startswith("{")]

    def text(self) -> str:
        """All that it has written."""
        with open(self._log, encoding="utf-8") as file:
            return file.read()

    def get(self, path: str, **headers) -> tuple:
        """(status, text) of a GET."""
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers)) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def health(self) -> str:
        return json.loads(self.get("/health")[1])["status"]

    def metrics(self) -> dict:
        """Sample, with its labels, -> value."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def post(self, path: str, body: dict, **headers) -> tuple:
        """(status, what the JSON of the answer holds, its headers) of a POST."""
        headers = {"Content-Type": "application/json", **headers}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response), response.headers
        except urllib.error.HTTPError as error:
            return error.code, json.load(error), error.headers


def open_stream(url: str, body: dict, session: str, seconds: float, *headers: str) -> tuple:
    """(the socket of a /v1/completions stream whose first event has come, what has come of it).

    headers: more lines of the request's head."""
    stream = socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=seconds)
    data = json.dumps(body)
    head = [
        "POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json",
        f"Content-Length: {len(data)}", f"X-Session-Id: {session}", *headers,
    ]  # fmt: skip
    stream.sendall(("\r\n".join(head) + "\r\n\r\n" + data).encode())
    got = b""
    while b"data: {" not in got:
        part = stream.recv(1 << 16)
        assert part, got
        got += part
    assert got.startswith(b"HTTP/1.1 200"), got
    return stream, got


def until(condition, seconds: float = 20):
    """What `condition` gives when it is no longer false."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


@contextlib.contextmanager
def serve(file, *options):
    """A Served that is ready, on a free port of this machine; it is ended behind the block."""
    command = [sys.executable, "-m", "edge_kit", "serve", str(file), "--port", "0", *map(str, options)]
    with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        served = Served(process, log.name)

        def address():
            assert process.poll() is None, served.text()
            return re.search(r"ready at (http://\S+)/\n", served.text())

        try:
            served.url = until(address, 60).group(1)
            until(lambda: process.poll() is not None or served.health() != "loading", 60)
            yield served
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
