"""A server for the web page with answers from a script: what `edge-kit serve` sends, without a model."""
from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from edge_kit.server import web

MODEL = "demo-model"


@dataclass
class Refusal:
    """Instead of an answer."""

    status: int
    body: dict
    headers: dict = field(default_factory=dict)


class Drop:
    """The connection breaks off."""


def think(text: str) -> dict:
    return {"delta": {"reasoning_content": text}}


def say(text: str) -> dict:
    return {"delta": {"content": text}}


def end(reason: str = "stop", tokens: int = 20) -> list:
    """The last chunks: the finish reason, as OpenAI's set has it, and the usage."""
    standard = reason if reason in ("stop", "length") else "length"
    choice = {"delta": {}, "finish_reason": standard, "edge_finish_reason": reason}
    return [choice, {"usage": {"prompt_tokens": 9, "completion_tokens": tokens}}]


class PageServer(ThreadingHTTPServer):
    """answers: question -> a Refusal, or parts: chunks, events to wait for, seconds
    to wait, or Drop. key: that it wants."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = {}
        self.key = None
        self.status = "ready"
        self.asked = []  # bodies of the requests for an answer
        self.left = threading.Event()  # a client went away amid an answer
        self.files = web.files()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_exception):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        pass  # a browser closes connections as it likes


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self):
        if self.path in self.server.files:
            path, content_type = self.server.files[self.path]
            self._send(200, path.read_bytes(), {"Content-Type": content_type, **web.HEADERS})
        elif self.path == "/health":
            self._send_json(200 if self.server.status == "ready" else 503, {"status": self.server.status})
        elif self.path == "/v1/models":
            self._send_json(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        else:
            self._send_json(404, {"error": {"message": f"no {self.path}"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self._send_json(401, {"error": {"message": "a key is needed"}})
            return
        self.server.asked.append(body)
        answer = self.server.answers[body["messages"][-1]["content"]]
        if isinstance(answer, Refusal):
            self._send_json(answer.status, answer.body, answer.headers)
        else:
            self._stream(answer)

    def _stream(self, parts):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for part in parts:
            if part is Drop:
                return
            if isinstance(part, float):
                time.sleep(part)
            elif isinstance(part, threading.Event):
                self._wait(part)
            else:
                self._event(json.dumps({"choices": [], **part} if "usage" in part else {"choices": [part]}))
                time.sleep(0.01)  # a model's steps take time
        self._event("[DONE]")

    def _wait(self, event):
        while not event.wait(0.05):
            try:
                self._write(b": still here\n\n")
            except OSError:
                self.server.left.set()
                raise

    def _event(self, data: str):
        self._write(f"data: {data}\n\n".encode())

    def _write(self, data: bytes):
        self.wfile.write(data)
        self.wfile.flush()

    def _send_json(self, status: int, body: dict, headers=()):
        self._send(status, json.dumps(body).encode(), {"Content-Type": "application/json", **dict(headers)})

    def _send(self, status: int, body: bytes, headers: dict):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments):
        pass
