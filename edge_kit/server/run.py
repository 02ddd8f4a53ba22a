"""Runs the application until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import socket
import sys

import uvicorn

from lite_runtime.errors import EdgeKitError, UsageError

from .app import create_app
from .connection import Connection
from .guard import JsonLines
from .service import Service
from .settings import Settings

_TICK = 0.1  # seconds between two looks at whether all answers have ended


class _Server(uvicorn.Server):
    """A first signal ends it when the running answers have ended; a second one at once."""

    def __init__(self, config, service: Service, grace: float, announcement: str):
        super().__init__(config)
        self._announcement = announcement  # once the model is there
        self._service, self._grace = service, grace
        self._draining = None

    def handle_exit(self, sig, frame):
        if not self.started:
            self.should_exit = True
        elif self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain())
        else:
            self._grace = 0

    async def _drain(self):
        self._service.shut_down()
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not self._service.is_idle and loop.time() < began + self._grace:
            await asyncio.sleep(_TICK)
        await asyncio.to_thread(self._service.cancel_all)
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        if self._announcement and self._service.model is not None:
            _collect_little_and_often()
            print(self._announcement, file=sys.stderr, flush=True)
            self._announcement = ""
        return self._service.error is not None or await super().on_tick(counter)


def serve(settings: Settings, host: str, port: int, grace: float) -> None:
    """Blocks. port 0: a free one. grace: seconds that running answers get to end. Raises EdgeKitError if the
    model cannot be loaded or the address cannot be used."""
    _start_log()
    listener = _listen(host, port)
    service = Service(settings)
    config = uvicorn.Config(
        create_app(settings, service),
        loop="asyncio",  # the same everywhere, whatever else is installed
        http=Connection,
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=1 << 16,
    )
    shown = f"[{host}]" if ":" in host else host
    announcement = f"edge-kit: ready at http://{shown}:{listener.getsockname()[1]}/"
    if settings.api_key is None and not _is_loopback(host):
        print("edge-kit: whoever reaches this address may use it: set --api-key", file=sys.stderr, flush=True)
    with listener:
        _Server(config, service, grace, announcement).run(sockets=[listener])
    if isinstance(service.error, EdgeKitError):
        raise service.error
    if service.error is not None:
        raise EdgeKitError(f"the server failed: {service.error!r}") from service.error


def _collect_little_and_often() -> None:
    """Every connection leaves a cycle of asyncio's objects to Python's collector, which by default comes once
    in about a thousand requests, and then looks at all that the start-up made, too. From here on that is left
    out: a collection takes milliseconds, and comes ten times as often."""
    gc.collect()
    gc.freeze()
    gc.collect()  # counts what may be garbage, anew
    gc.set_threshold(700, 5, 0)


def _listen(host: str, port: int) -> socket.socket:
    if port > 65535:
        raise UsageError(f"port {port}, expected a number from 0 to 65535")
    try:
        family, _kind, _protocol, _name, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=512)
    except (OSError, OverflowError, UnicodeError) as error:
        known = isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno
        reason = os.strerror(error.errno) if known else getattr(error, "strerror", None) or error
        raise UsageError(
            f"cannot listen on {host} port {port}: {reason}; choose another --host or --port (0 = a free one)"
        ) from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _start_log() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("edge_kit").setLevel(logging.INFO)
