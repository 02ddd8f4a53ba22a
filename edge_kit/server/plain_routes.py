"""/generate, one answer with all its times, and /chat, an answer as it comes: the plain routes."""

from __future__ import annotations

import os
import time

from fastapi import APIRouter, Request

from lite_runtime import machine
from lite_runtime.errors import UsageError

from .schemas import ChatEventsBody, GenerateBody
from .streaming import respond


def routes(service, owner_of) -> APIRouter:
    """owner_of: a request's session, or None."""
    router = APIRouter()

    @router.post("/generate")
    async def generate(body: GenerateBody, request: Request):
        """text and reasoning; tokens; stages: seconds of each; and what the whole process used meanwhile,
        other requests' work included: cpu_seconds, cpus (of them per second), rss_bytes, peak_rss_bytes."""
        service.require_model()
        if (body.messages is None) == (body.prompt is None):
            raise UsageError("expected either messages or a prompt")
        form = _Report()
        if body.prompt is not None:
            if body.response_format is not None or body.thinking_budget is not None:
                raise UsageError("response_format and thinking_budget need messages in place of a prompt")
            ask = service.completion(body, body.prompt, owner_of(request), body.max_new_tokens)
        else:
            ask = service.chat(body, owner_of(request), body.max_new_tokens)
        return await respond(request, await ask, form, stream=False)

    @router.post("/chat")
    async def chat(body: ChatEventsBody, request: Request):
        """Events {"reasoning", "content"}; the last one has finish_reason, cut_in and the tokens, too."""
        service.require_model()
        answer = await service.chat(body, owner_of(request), body.max_new_tokens)
        return await respond(request, answer, _Events(), stream=True)

    return router


class _Events:
    end = None

    def events(self, answer, item) -> list:
        event = {"reasoning": item.reasoning, "content": item.text}
        if item.finish_reason is not None:
            event.update(_ending(answer, item))
        return [event] if item.reasoning or item.text or item.finish_reason is not None else []

    def last_events(self, answer) -> list:
        return []


class _Report:
    def __init__(self):
        self._began, self._cpu = time.perf_counter(), _cpu_seconds()

    def whole(self, answer) -> dict:
        total, cpu = time.perf_counter() - self._began, _cpu_seconds() - self._cpu
        items, request = answer.items, answer.request
        stages = {"encode": answer.question.encode_seconds, "queue": 0.0, "prefill": 0.0, "decode": 0.0}
        if request is not None and request.started is not None:
            stages["queue"] = request.started - request.submitted
            if request.first_token is not None:
                stages["prefill"] = request.first_token - request.started
                stages["decode"] = request.ended - request.first_token
        n_computed, n_later = len(answer.question.ids) - answer.n_cached, answer.n_generated - 1
        return {
            "text": "".join(item.text for item in items),
            "reasoning": "".join(item.reasoning for item in items) if answer.has_reasoning else None,
            **_ending(answer, items[-1]),
            "stages": {**stages, "total": total},
            "prefill_tps": n_computed / stages["prefill"] if stages["prefill"] else None,
            "decode_tps": n_later / stages["decode"] if n_later > 0 and stages["decode"] else None,
            "cpu_seconds": cpu,
            "cpus": cpu / total,
            "rss_bytes": machine.rss(),
            "peak_rss_bytes": machine.peak_rss(),
        }


def _ending(answer, last) -> dict:
    return {
        "finish_reason": last.finish_reason,
        "cut_in": last.cut_in,
        "prompt_tokens": len(answer.question.ids),
        "cached_tokens": answer.n_cached,
        "generated_tokens": answer.n_generated,
        "reasoning_tokens": answer.n_reasoning,
    }


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system
