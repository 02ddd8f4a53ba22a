"""From a request's body to what the batch takes: token ids, a reader of the answer, options."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from dataclasses import dataclass
from typing import Optional, Union

from lite_runtime.answer import AnswerReader
from lite_runtime.constraint import Constraint
from lite_runtime.conversation import next_beginning, render
from lite_runtime.errors import ContextFullError, UsageError
from lite_runtime.generate import resolve_temperature, stop_strings
from lite_runtime.thinking import Tags

_NEVER = -100.0  # the bias that ends a token's chances, as OpenAI has it


@dataclass
class Question:
    """prompt: as text, or token ids. ids: of it, with what a thinking budget of none closes. options: of
    Batcher.submit. reader: one of them; None where the text is taken as it comes. messages: of a chat, None
    otherwise. cache_key: equal for questions whose answers are equal; None where an answer is drawn.
    encode_seconds: that this took."""

    prompt: Union[str, list]
    ids: list
    options: dict
    reader: Optional[AnswerReader]
    messages: Optional[list]
    cache_key: Optional[bytes]
    encode_seconds: float

    @property
    def has_reasoning(self) -> bool:
        """Whether the answer so far has a block of reasoning, be it empty."""
        return self.reader is not None and self.reader.has_reasoning

    @property
    def n_reasoning(self) -> int:
        """Tokens of reasoning in the answer so far."""
        return 0 if self.reader is None else self.reader.n_reasoning


class Asker:
    """Makes Questions for one model. Any thread."""

    def __init__(self, model, settings):
        self._model, self._settings = model, settings
        self._tags = Tags.of_template(model.text.template_source)
        self._closing = model.text.encode(self._tags.closing, bos=False)
        self._most_prompt = min(settings.max_prompt_tokens or model.info.n_ctx, model.info.n_ctx)

    def chat(self, body, owner, max_tokens=None, n_logprobs=None) -> Question:
        """body: with messages. Raises UsageError, ContextFullError."""
        began = time.perf_counter()
        messages = [message.plain() for message in body.messages]
        prompt = render(self._model.text, self._tags, messages)
        ids = self._model.text.encode(prompt, bos=False)
        budget = body.thinking_budget
        if budget is None:
            budget = self._settings.thinking_budget
        stops = stop_strings(body.stop)
        reader = AnswerReader(prompt, self._tags, budget, stops, body.stop_at_repetition)
        ids = reader.opening(ids, self._closing)
        options = self._options(body, ids, max_tokens, n_logprobs)
        grammar, options["constraint"] = self._constraint(body.response_format)
        key = self._cache_key(ids, options, stops, body.stop_at_repetition, budget, grammar)
        options.update(reader=reader, closing=self._closing, owner=owner)
        return Question(prompt, ids, options, reader, messages, key, time.perf_counter() - began)

    def completion(self, body, prompt, owner, max_tokens=None, n_logprobs=None) -> Question:
        """prompt: a text or token ids, taken as they are."""
        began = time.perf_counter()
        ids = self._model.text.encode(prompt) if isinstance(prompt, str) else prompt
        options = self._options(body, ids, max_tokens, n_logprobs)
        options.update(stop=stop_strings(body.stop), stop_at_repetition=body.stop_at_repetition)
        key = self._cache_key(ids, options)
        options["owner"] = owner
        return Question(prompt, ids, options, None, None, key, time.perf_counter() - began)

    def next_beginning(self, question: Question, answer: dict) -> list:
        """Token ids that the next prompt begins with when `answer`, a message, has joined the messages."""
        return next_beginning(self._model.text, self._tags, [*question.messages, answer])

    def _cache_key(self, ids, options, *others):
        if resolve_temperature(self._model.generation_config, options["temperature"]) != 0:
            return None
        names = sorted(options.keys() - {"seed", "timeout", "constraint"})
        told = (list(ids), [(name, options[name]) for name in names], others)
        return hashlib.sha256(repr(told).encode("utf-8", "backslashreplace")).digest()

    def _options(self, body, ids, max_tokens, n_logprobs) -> dict:
        settings = self._settings
        if not ids:
            raise UsageError("the prompt has no tokens, expected one at least")
        if len(ids) > self._most_prompt:
            raise ContextFullError(
                f"the prompt has {len(ids)} tokens, the limit is {self._most_prompt}: shorten it"
            )
        most = settings.max_new_tokens
        if max_tokens is not None and most is not None and max_tokens > most:
            raise UsageError(f"{max_tokens} new tokens are asked for, this server gives {most} at most")
        timeout = settings.deadline if body.timeout is None else min(body.timeout, settings.deadline)
        seed = secrets.randbits(63) if body.seed is None else body.seed % 2**64
        return {
            "max_new_tokens": most if max_tokens is None else max_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "min_p": body.min_p,
            "repetition_penalty": body.repetition_penalty,
            "seed": seed,
            "logit_bias": self._bias(body),
            "logprobs": n_logprobs,
            "timeout": timeout,
        }

    def _bias(self, body) -> dict:
        bias = {}
        for token, value in (body.logit_bias or {}).items():
            if not (token.isascii() and token.isdecimal() and len(token) < 10):
                raise UsageError(f"logit_bias of token {token!r}, expected a token id")
            bias[int(token)] = value
        if body.ignore_eos:
            bias.update((token, _NEVER) for token in self._model.eos_ids)
        return bias

    def _constraint(self, response_format) -> tuple:
        """(what was asked for as one text, the compiled Constraint or None)."""
        if response_format is None:
            return "", None
        for name, kind in (("pattern", "regex"), ("json_schema", "json_schema")):
            if getattr(response_format, name) is not None and response_format.type != kind:
                raise UsageError(f"response_format has a {name}, which goes with the type {kind} alone")
        if response_format.type == "text":
            return "", None
        if response_format.type == "regex":
            if response_format.pattern is None:
                raise UsageError("response_format of type regex has no pattern")
            return "regex " + response_format.pattern, Constraint.regex(self._model, response_format.pattern)
        schema = {"type": "object"}
        if response_format.type == "json_schema":
            if response_format.json_schema is None:
                raise UsageError("response_format of type json_schema has no json_schema")
            schema = response_format.json_schema.schema_
        return "json " + json.dumps(schema), Constraint.json_schema(self._model, schema)
