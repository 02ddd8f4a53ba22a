"""An Answer as an HTTP response, whole or as server-sent events, while its client is there."""

from __future__ import annotations

import asyncio
import json
import logging

from fastapi import Request
from fastapi.responses import JSONResponse, StreamingResponse

from . import errors
from .errors import HttpError
from .service import Answer

# The second one makes nginx pass events on at once.
EVENT_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

log = logging.getLogger("edge_kit.server")


async def respond(request: Request, answer: Answer, form, stream: bool):
    """form: has `whole(answer)` -> dict, and for streams `events(answer, item)` and `last_events(answer)` ->
    lists of dicts, and `end`, the data that ends one or None."""
    watch = asyncio.create_task(_cancel_when_left(request, answer))
    started = False
    try:
        items = answer.__aiter__()
        first = await items.__anext__()
        if answer.timed_out and first.token is None:
            raise HttpError(408, "the deadline passed before the first token", "timeout")
        if stream:
            started = True
            return StreamingResponse(
                _events(request, answer, form, items, first, watch),
                media_type="text/event-stream",
                headers=EVENT_HEADERS,
            )
        async for _item in items:
            pass
        return JSONResponse(form.whole(answer), headers={"Cache-Control": "no-store"})
    finally:
        if not started:
            _end(request, answer, watch)


async def _events(request, answer, form, items, first, watch):
    try:
        for event in form.events(answer, first):
            yield _line(event)
        async for item in items:
            for event in form.events(answer, item):
                yield _line(event)
        for event in form.last_events(answer):
            yield _line(event)
        if form.end is not None:
            yield f"data: {form.end}\n\n"
    except Exception as error:  # the status is sent: an event has to tell
        if errors.of(error).status >= 500:
            log.error("an answer failed", exc_info=error)
        yield _line(errors.of(error).body())
    finally:
        _end(request, answer, watch)


def _line(event: dict) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def _cancel_when_left(request, answer) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    answer.cancel()


def _end(request, answer, watch) -> None:
    watch.cancel()
    answer.cancel()
    finish_reason = answer.items[-1].finish_reason if answer.items else None
    if finish_reason is None:  # it failed, or who asked has left
        finish_reason = "error" if answer.request is not None and answer.request.error else "cancelled"
    told = request.scope["edge_kit_log"]
    if request.app.state.service.settings.log_prompts:
        told["prompt"] = answer.question.prompt
        told["answer"] = "".join(item.reasoning + item.text for item in answer.items)
    told.update(
        prompt_tokens=len(answer.question.ids),
        cached_tokens=answer.n_cached,
        generated_tokens=answer.n_generated,
        finish_reason=finish_reason,
    )
