"""The application: all routes, and what holds for every request."""

from __future__ import annotations

import asyncio
import contextlib

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

import edge_kit
from lite_runtime.errors import EdgeKitError, UsageError, did_you_mean

from . import errors, openai_routes, plain_routes, schemas, web
from .errors import HttpError
from .guard import Guard
from .service import Service
from .settings import Settings

SESSION_HEADER = "X-Session-Id"
_MAX_SESSION = 128  # characters


def create_app(settings: Settings, service=None) -> FastAPI:
    """The application. It loads the model while it already listens; `service` tells when that is done."""
    service = Service(settings) if service is None else service

    @contextlib.asynccontextmanager
    async def lifespan(_app):
        loading = asyncio.create_task(asyncio.to_thread(service.load))
        yield
        await asyncio.wait([loading])  # of what it raised, Service.error tells
        loading.exception()
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="edge-kit",
        version=edge_kit.__version__,
        lifespan=lifespan,
        docs_url=None,  # they load their scripts from elsewhere
        redoc_url=None,
        responses={status: {"description": text} for status, text in _REFUSALS.items()},
    )
    app.state.service = service
    app.include_router(openai_routes.routes(service, _owner_of))
    app.include_router(plain_routes.routes(service, _owner_of))
    _add_probes(app, service)
    pages = web.files()
    _add_page(app, pages)
    for kind in (HttpError, EdgeKitError):
        app.add_exception_handler(kind, lambda _request, error: errors.of(error).response())
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(Guard, settings=settings, metrics=service.metrics, open_paths=["/health", *pages])
    return app


_REFUSALS = {
    400: "What was sent cannot be used",
    401: "The API key is missing or wrong",
    403: "The Host header names another server",
    408: "The deadline passed, or the body was too slow",
    413: "The body is too long",
    415: "The body is no JSON",
    429: "All places are taken; Retry-After tells when to come again",
    503: "The model is being loaded, or the server is shutting down",
}


def _owner_of(request: Request):
    """The session that a client names, so that its next turn finds its cache; None if it names none."""
    name = request.headers.get(SESSION_HEADER)
    if name is not None and not (0 < len(name) <= _MAX_SESSION and name.isascii() and name.isprintable()):
        raise UsageError(f"{SESSION_HEADER} {name[:40]!r}, expected 1 to {_MAX_SESSION} printable characters")
    return name


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health():
        """200 when "ready"; 503 when "loading", "overloaded" or "stopping"."""
        status = service.status
        body = {"status": status, "model": service.name, "version": edge_kit.__version__}
        headers = {"Cache-Control": "no-store"}
        return JSONResponse(body, 200 if status == "ready" else 503, headers)

    @app.get("/metrics")
    async def metrics():
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI, pages: dict) -> None:
    def route(file, content_type):
        async def page():
            return FileResponse(file, media_type=content_type, headers=web.HEADERS)

        return page

    for path, (file, content_type) in pages.items():
        app.add_api_route(path, route(file, content_type), methods=["GET", "HEAD"], include_in_schema=False)


def _refused(request: Request, error: HTTPException):
    code = {404: "not_found", 405: "wrong_method"}.get(error.status_code, "invalid_request")
    text = str(error.detail)
    if error.status_code == 404:
        text = (
            f"there is no {request.url.path[:100]!r} here: OpenAI's routes begin with /v1, see /openapi.json"
        )
    return HttpError(error.status_code, text, code, headers=error.headers).response()


def _invalid(request: Request, error: RequestValidationError):
    """The first fault of a body, by the name of its field."""
    # A mistyped name first: it is why another field is missing.
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    path = getattr(request.scope.get("route"), "path", "")
    where = [part for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        where, message = [], f"the body is no JSON: {first.get('ctx', {}).get('error', first['msg'])}"
    elif first["type"] == "extra_forbidden":
        names = schemas.fields_of(path, nested=len(where) > 1) - {where[-1]}  # it may belong elsewhere
        message = f"unknown field here, it would have no effect{did_you_mean(str(where[-1]), names)}"
    else:
        # Of the kinds that a value may have pydantic names the one it tried: no part of the request.
        known = schemas.fields_of(path, nested=False) | schemas.fields_of(path, nested=True)
        where = [part for part in where if isinstance(part, int) or part in known]
        names = [part for part in where if isinstance(part, str)]
        message = schemas.EXPECTED.get(names[-1] if names else "", first["msg"])
    name = ".".join(map(str, where))[:200]
    return HttpError(400, f"{name}: {message}" if name else message, "invalid_value", name or None).response()


def _failed(_request, error: Exception):
    return errors.of(error).response()
