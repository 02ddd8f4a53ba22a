"""What every request passes first: whose name it came by, its key, its size; and what the log tells of it.

The Host header is checked since a web page elsewhere may have its own name point here ("DNS rebinding"): such
a request comes by a name, so addresses and localhost are let in, and names that the settings have. Another
page's requests are kept out by their content type: JSON makes a browser ask first, and nothing is allowed.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import time

from .errors import HttpError
from .settings import MEGABYTE, Settings

BODY_SECONDS = 30.0  # that a client may take to send one
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")
log = logging.getLogger("edge_kit.server.requests")


class Guard:
    """ASGI middleware around the application."""

    def __init__(self, app, settings: Settings, metrics, open_paths):
        """open_paths: what needs no key."""
        self._app, self._settings, self._metrics = app, settings, metrics
        self._open_paths = frozenset(open_paths)
        self._max_body = int(settings.max_body_mb * MEGABYTE)

    async def __call__(self, scope, receive, send):
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = scope["edge_kit_log"] = {}
        began, status, left = time.perf_counter(), None, False

        async def send_noted(message):
            nonlocal status, left
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message["headers"], _NO_SNIFFING]
                message = {**message, "headers": list(dict.fromkeys(headers))}
            try:
                await send(message)
            except Exception:  # the connection is broken, or what came over it was no HTTP and is answered
                left = True
                raise

        try:
            try:
                self._check(scope)
                receive = await self._read_body(scope, receive)
            except HttpError as error:
                await error.response()(scope, receive, send_noted)
            else:
                if receive is not None:
                    await self._app(scope, receive, send_noted)
        except Exception:
            if not left:
                status = status or 500
                raise
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.http_requests.labels(route, "left" if left or status is None else str(status)).inc()
            log.info(
                "request",
                extra={
                    "method": scope["method"],
                    "path": scope["path"][:200],
                    "status": None if left else status,
                    "seconds": round(time.perf_counter() - began, 6),
                    "client": (scope.get("client") or ("",))[0],
                    **told,
                },
            )

    def _check(self, scope) -> None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if not is_allowed_host(host, self._settings.hosts):
            raise HttpError(
                403, f"this server is not known as {host!r}: start it with --allow-host NAME", "wrong_host"
            )
        key = self._settings.api_key
        if key is not None and scope["path"] not in self._open_paths:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + key.encode("ascii")):
                raise HttpError(
                    401,
                    "the API key is missing or wrong: send 'Authorization: Bearer KEY'",
                    "invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        if scope["method"] == "POST":
            content_type = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if content_type != b"application/json":
                text = "expected a body with Content-Type: application/json"
                raise HttpError(415, text, "wrong_content_type")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self._max_body:
            raise self._too_long()

    def _too_long(self) -> HttpError:
        text = f"the body has more than {self._max_body} bytes, the limit here"
        return HttpError(413, text, "body_too_long")

    async def _read_body(self, scope, receive):
        """A `receive` that gives the whole body, or None if the client has left."""
        body, more = bytearray(), True
        deadline = asyncio.get_running_loop().time() + BODY_SECONDS
        while more:
            left = deadline - asyncio.get_running_loop().time()
            try:
                message = await asyncio.wait_for(receive(), max(left, 0))
            except asyncio.TimeoutError:
                raise HttpError(
                    408, f"the body did not come within {BODY_SECONDS:g} s", "body_too_slow",
                    headers={"Connection": "close"},
                ) from None  # fmt: skip
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_body:
                raise self._too_long()
            more = message.get("more_body", False)
        messages = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def receive_again():
            return messages.pop() if messages else await receive()

        return receive_again


def is_allowed_host(host: str, names) -> bool:
    """Whether a Host header is an address, localhost or one of `names`."""
    name = host.rsplit(":", 1)[0] if host.rpartition(":")[2].isdigit() else host
    if "*" in names or name.lower().rstrip(".") in ("localhost", *(n.lower() for n in names)):
        return True
    try:
        ipaddress.ip_address(name[1:-1] if name[:1] == "[" and name[-1:] == "]" else name)
        return True
    except ValueError:
        return False


class JsonLines(logging.Formatter):
    """A log record as one line of JSON: time, level, event and what came with it."""

    _OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def format(self, record) -> str:
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{second}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line.update((name, value) for name, value in vars(record).items() if name not in self._OWN)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
