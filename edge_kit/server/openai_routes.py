"""The OpenAI-compatible routes. What they add is named edge_…; OpenAI's API reference describes the rest."""

from __future__ import annotations

import secrets
import time

from fastapi import APIRouter, Request

from lite_runtime.errors import UsageError

from .schemas import ChatBody, CompletionBody
from .streaming import respond

_FINISH = {"stop": "stop", "length": "length"}  # OpenAI's set knows no others that are ours


def routes(service, owner_of) -> APIRouter:
    """owner_of: a request's session, or None."""
    router = APIRouter(prefix="/v1")

    @router.get("/models")
    async def models():
        service.require_model()
        return {"object": "list", "data": [_model(service)]}

    @router.get("/models/{name:path}")
    async def model(name: str):
        service.require_model(name)
        return _model(service)

    @router.post("/chat/completions")
    async def chat_completions(body: ChatBody, request: Request):
        service.require_model(body.model)
        most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        if body.top_logprobs is not None and not body.logprobs:
            raise UsageError("top_logprobs goes with logprobs: true")
        n_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        answer = await service.chat(body, owner_of(request), most, n_logprobs)
        return await respond(request, answer, _Chat(service, body), bool(body.stream))

    @router.post("/completions")
    async def completions(body: CompletionBody, request: Request):
        service.require_model(body.model)
        answer = await service.completion(
            body, body.plain_prompt(), owner_of(request), body.max_tokens, body.logprobs
        )
        return await respond(request, answer, _Completion(service, body), bool(body.stream))

    return router


def _model(service) -> dict:
    return {"id": service.name, "object": "model", "created": service.created, "owned_by": "edge-kit"}


class _Form:
    """What both kinds of answers have in common. Subclasses name the objects and fill the choices."""

    end = "[DONE]"

    def __init__(self, service, body, prefix: str):
        self._service = service
        self._with_usage = body.stream_options is not None and body.stream_options.include_usage
        self._head = {
            "id": prefix + secrets.token_hex(12),
            "created": int(time.time()),
            "model": service.name,
        }
        self._logprobs = Logprobs(service.model)

    def _object(self, kind: str, choices: list) -> dict:
        return {**self._head, "object": kind, "choices": choices}

    def _choice(self, item, **content) -> dict:
        choice = {"index": 0, **content, "finish_reason": _FINISH.get(item.finish_reason)}
        if item.finish_reason is not None:
            choice["finish_reason"] = _FINISH.get(item.finish_reason, "length")
            if item.finish_reason not in _FINISH:
                choice["edge_finish_reason"] = item.finish_reason
            if item.cut_in is not None:
                choice["edge_cut_in"] = item.cut_in
        return choice

    def last_events(self, answer) -> list:
        if not self._with_usage:
            return []
        return [{**self._object(self._stream_kind, []), "usage": usage(answer)}]


class _Chat(_Form):
    _stream_kind = "chat.completion.chunk"

    def __init__(self, service, body):
        super().__init__(service, body, "chatcmpl-")
        self._began = False

    def whole(self, answer) -> dict:
        items = answer.items
        message = {"role": "assistant", "content": "".join(item.text for item in items)}
        if answer.has_reasoning:
            message["reasoning_content"] = "".join(item.reasoning for item in items)
        choice = self._choice(items[-1], message=message, logprobs=self._logprobs.chat(items))
        return {**self._object("chat.completion", [choice]), "usage": usage(answer)}

    def events(self, answer, item) -> list:
        delta = {} if self._began else {"role": "assistant", "content": ""}
        if item.reasoning:
            delta["reasoning_content"] = item.reasoning
        if item.text:
            delta["content"] = item.text
        logprobs = self._logprobs.chat([item])
        if not delta and logprobs is None and item.finish_reason is None:
            return []
        self._began = True
        choice = self._choice(item, delta=delta, logprobs=logprobs)
        return [self._object(self._stream_kind, [choice])]


class _Completion(_Form):
    _stream_kind = "text_completion"

    def __init__(self, service, body):
        super().__init__(service, body, "cmpl-")
        self._offset = 0  # characters of the text so far

    def whole(self, answer) -> dict:
        text = "".join(item.text for item in answer.items)
        logprobs = self._logprobs.completion(answer.items, 0)
        choice = self._choice(answer.items[-1], text=text, logprobs=logprobs)
        return {**self._object(self._stream_kind, [choice]), "usage": usage(answer)}

    def events(self, answer, item) -> list:
        logprobs = self._logprobs.completion([item], self._offset)
        self._offset += len(item.text)
        if not item.text and logprobs is None and item.finish_reason is None:
            return []
        choice = self._choice(item, text=item.text, logprobs=logprobs)
        return [self._object(self._stream_kind, [choice])]


def usage(answer) -> dict:
    """Tokens of an answer that has ended."""
    n_prompt, n_new = len(answer.question.ids), answer.n_generated
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_new,
        "total_tokens": n_prompt + n_new,
        "prompt_tokens_details": {"cached_tokens": answer.n_cached},
        "completion_tokens_details": {"reasoning_tokens": answer.n_reasoning},
    }


class Logprobs:
    """The logprobs of items in OpenAI's two forms; None where an answer has none. End tokens are left out."""

    def __init__(self, model):
        self._model = model

    def chat(self, items):
        """{"content": [{"token", "logprob", "bytes", "top_logprobs"}, …]}"""
        told = self._told(items)
        if told is None:
            return None
        content = []
        for item in told:
            top = [self._entry(token, logprob) for token, logprob in item.logprobs.top]
            content.append({**self._entry(item.token, item.logprobs.logprob), "top_logprobs": top})
        return {"content": content, "refusal": None}

    def completion(self, items, offset: int):
        """{"tokens", "token_logprobs", "top_logprobs", "text_offset"}. offset: characters before `items`."""
        told = self._told(items)
        if told is None:
            return None
        offsets, at = {}, offset
        for item in items:
            offsets[id(item)] = at
            at += len(item.text)
        return {
            "tokens": [self._text(item.token) for item in told],
            "token_logprobs": [item.logprobs.logprob for item in told],
            "top_logprobs": [{self._text(i): logprob for i, logprob in item.logprobs.top} for item in told],
            "text_offset": [offsets[id(item)] for item in told],
        }

    def _told(self, items):
        told = [item for item in items if item.logprobs is not None]
        return [item for item in told if item.token not in self._model.eos_ids] if told else None

    def _entry(self, token: int, logprob: float) -> dict:
        return {
            "token": self._text(token),
            "logprob": logprob,
            "bytes": list(self._model.text.token_bytes(token)),
        }

    def _text(self, token: int) -> str:
        """What a token stands for; of a part of a character, or of a special token, its name."""
        data = self._model.text.token_bytes(token)
        try:
            return data.decode("utf-8") or self._model.text.tokenizer.id_to_token(token) or ""
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
