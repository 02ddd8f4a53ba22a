"""One request after another to an OpenAI-compatible server, with the time of every event of its stream.

Blocking calls of the standard library, for a thread per request: on cores that the server needs as well, an
event costs less here than in a client library.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
import zlib
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from lite_runtime.errors import EdgeKitError, UsageError

ROUTES = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_READ = 1 << 16  # bytes


class RequestError(EdgeKitError):
    """A request got no whole answer. kind: a few words, the same for the same cause."""

    def __init__(self, kind: str, detail: str = ""):
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind


class EventParser:
    """Takes the bytes of a text/event-stream however they come in, gives the data of each whole event."""

    def __init__(self):
        self._rest = b""
        self._data = []

    def feed(self, data: bytes) -> list:
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data).decode("utf-8"))
                self._data.clear()
        return events


@dataclass
class Answer:
    """What one request brought. Times are of time.perf_counter.

    due: when it was to start; a thread that came late counts against the server's answer, as its user waits.
    times: of the events that brought text. error: the kind, None if the answer is whole.
    """

    index: int
    due: float
    times: list = field(default_factory=list)
    ended: float = 0.0
    text: str = ""
    prompt_tokens: int = 0
    new_tokens: int = 0
    cached_tokens: int = 0
    error: str | None = None

    @property
    def checksum(self) -> int:
        return zlib.crc32(self.text.encode("utf-8"))


class Server:
    """An address, and how requests to it look.

    fields: more of each request's body. chat: whether /v1/chat/completions is asked.
    """

    def __init__(self, url: str, api_key=None, model=None, chat=False, timeout=600.0):
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            self._address = (parts.hostname, parts.port)
        except ValueError as error:
            raise UsageError(f"--url {url}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--url {url}, expected http://HOST:PORT")
        self._connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout = timeout
        self._chat, self.fields = chat, {}
        self._model = model

    def find_model(self) -> dict:
        """What the server says of its first model; asks for that one unless told which. RequestError."""
        try:
            (model, *_) = json.loads(self.get("/v1/models"))["data"]
            self._model = self._model or model["id"]
        except (ValueError, KeyError, TypeError) as error:
            raise RequestError("no model", f"/v1/models is no list of models: {error!r}") from None
        return model

    def get(self, path: str) -> str:
        """The text of a GET. RequestError."""
        with _Exchange(self, "GET", path) as response:
            return response.read().decode("utf-8", "replace")

    def ask(self, answer: Answer, prompt: str, new_tokens: int) -> None:
        """Fills in `answer`; a failure becomes its error."""
        body = {"model": self._model, "max_tokens": new_tokens, "temperature": 0, **self.fields}
        body.update(stream=True, stream_options={"include_usage": True})
        body.update({"messages": [{"role": "user", "content": prompt}]} if self._chat else {"prompt": prompt})
        route = ROUTES["chat" if self._chat else "completions"]
        try:
            with _Exchange(self, "POST", route, json.dumps(body)) as response:
                self._read(answer, response)
        except RequestError as error:
            answer.error = error.kind
        answer.ended = time.perf_counter()

    def _read(self, answer: Answer, response) -> None:
        parser, texts = EventParser(), []
        while True:
            data = response.read1(_READ)
            now = time.perf_counter()
            if not data:
                raise RequestError("stream cut off")
            for event in parser.feed(data):
                if event == "[DONE]":
                    answer.text = "".join(texts)
                    return
                text = self._take(answer, event)
                if text:
                    texts.append(text)
                    answer.times.append(now)

    def _take(self, answer: Answer, event: str) -> str:
        """The text of an event; its usage goes into `answer`."""
        try:
            event = json.loads(event)
            if "error" in event:
                raise RequestError("error in the stream", str(event["error"]))
            usage = event.get("usage")
            if usage:
                answer.prompt_tokens = usage["prompt_tokens"]
                answer.new_tokens = usage["completion_tokens"]
                answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            text = ""
            for choice in event["choices"]:
                delta = choice["delta"] if self._chat else choice
                names = ("reasoning_content", "content") if self._chat else ("text",)
                text += "".join(delta.get(name) or "" for name in names)
            return text
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RequestError("unreadable event", repr(error)) from None


class _Exchange:
    """A request on a connection of its own, closed behind the block; turns what fails into RequestError."""

    def __init__(self, server: Server, method: str, path: str, body=None):
        self._server, self._method, self._path, self._body = server, method, path, body

    def __enter__(self):
        server = self._server
        host, port = server._address
        self._connection = server._connect(host, port, timeout=server._timeout)
        try:
            self._connection.request(self._method, server._base + self._path, self._body, server._headers)
            response = self._connection.getresponse()
            if response.status != 200:
                text = response.read(2000).decode("utf-8", "replace")
                raise RequestError(f"HTTP {response.status}", " ".join(text.split())[:300])
            return response
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def __exit__(self, _kind, error, _trace):
        self._connection.close()
        if isinstance(error, ConnectionRefusedError):
            raise RequestError("connection refused") from None
        if isinstance(error, (socket.timeout, TimeoutError)):
            raise RequestError("timeout") from None
        if isinstance(error, (OSError, http.client.HTTPException)):
            raise RequestError("connection lost", repr(error)) from None
