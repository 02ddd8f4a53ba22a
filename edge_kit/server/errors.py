"""Errors as HTTP answers, in the form that OpenAI's clients read."""

from __future__ import annotations

import math

from fastapi.responses import JSONResponse

from lite_runtime.errors import (
    ContextFullError,
    EdgeKitError,
    MemoryLimitError,
    QueueFullError,
    ShuttingDownError,
    UnsupportedError,
    UsageError,
)

_MAX_MESSAGE = 1000  # characters: a message quotes what was sent


class HttpError(Exception):
    """An answer that is no answer. code: a word for programs; param: the field that is wrong."""

    def __init__(self, status: int, message: str, code: str, param=None, headers=None):
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.headers = dict(headers or {})

    def body(self) -> dict:
        """{"error": …}, with text that every encoder takes."""
        message = str(self).encode("utf-8", "replace").decode("utf-8")
        if len(message) > _MAX_MESSAGE:
            message = message[:_MAX_MESSAGE] + " …"
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def retry_after(seconds: float) -> dict:
    """The header, in the whole seconds that it takes."""
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def of(error: Exception) -> HttpError:
    """The HttpError that tells a client of `error`."""
    text = str(error)
    if isinstance(error, HttpError):
        return error
    if isinstance(error, QueueFullError):
        return HttpError(429, text, "overloaded", headers=retry_after(error.retry_after))
    if isinstance(error, ShuttingDownError):
        return HttpError(503, text, "shutting_down")
    if isinstance(error, MemoryLimitError):
        return HttpError(503, text, "out_of_memory", headers=retry_after(1))
    if isinstance(error, ContextFullError):
        return HttpError(400, text, "context_length_exceeded")
    if isinstance(error, (UsageError, UnsupportedError)):
        return HttpError(400, text, "invalid_value")
    if isinstance(error, EdgeKitError):
        return HttpError(500, text, "failed")
    return HttpError(500, "the server failed; its log says more", "internal_error")
