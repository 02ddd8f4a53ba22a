"""What the tokens of one answer mean, one after the other.

An AnswerReader knows text and token ids only: a conversation feeds it from one session, a server from the
batch that the answer is part of. A Turn adds what a conversation counts and keeps meanwhile.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Optional

from .generate import StopMatcher
from .output_control import Logprobs, begun
from .repetition import RepetitionDetector
from .thinking import Tags, ThinkingParser


@dataclass(frozen=True)
class Piece:
    """What became certain with one token.

    finish_reason: "stop" or "repetition" if the answer ends with it; None if it goes on.
    close_thinking: the budget is used up: `Tags.closing` must be the next input, and `AnswerReader.closed`
        be told.
    """

    reasoning: str
    content: str
    finish_reason: Optional[str] = None
    close_thinking: bool = False


class AnswerReader:
    """Reasoning, content and reasons to end. Stop strings count in the content alone."""

    def __init__(self, prompt: str, tags: Tags, thinking_budget=None, stops=(), stop_at_repetition=True):
        """prompt: the rendered one. thinking_budget: most tokens of reasoning; None = any number."""
        self._parser = ThinkingParser(tags.opened_by(prompt), tags)
        self._tags = tags
        self._budget = thinking_budget
        self._matcher = StopMatcher(stops)
        self._detector = RepetitionDetector() if stop_at_repetition else None
        self.n_reasoning = 0  # tokens

    @property
    def inside(self) -> bool:
        """Whether the answer is in its reasoning."""
        return self._parser.inside

    @property
    def has_reasoning(self) -> bool:
        """Whether there is a block of reasoning, be it empty."""
        return self._parser.has_block

    @property
    def over_budget(self) -> bool:
        """Whether the reasoning must be closed now; with a budget of 0 before the first token."""
        return self.inside and self._budget is not None and self.n_reasoning >= self._budget

    def opening(self, ids: list, closing: list) -> list:
        """The ids of the prompt, with `closing` behind them where there may be no reasoning at all."""
        if not self.over_budget:
            return ids
        self.closed()
        return ids + closing

    def add(self, token: int, text: str) -> Piece:
        """The answer goes on with `token`, and `text` became certain."""
        self.n_reasoning += self.inside
        reasoning, content = self._parser.add(text)
        content, stopped = self._matcher.add(content)
        if stopped:
            return Piece(reasoning, content, "stop")
        if self._detector is not None and self._detector.add(token):
            return Piece(reasoning, content, "repetition")
        return Piece(reasoning, content, None, self.over_budget)

    def closed(self) -> str:
        """The reasoning was closed from outside; gives what was held back of it."""
        return self._parser.add(self._tags.closing)[0]

    def flush(self) -> tuple:
        """(reasoning, content) that was held back, at the end."""
        reasoning, content = self._parser.flush()
        content, stopped = self._matcher.add(content)
        return reasoning, content if stopped else content + self._matcher.flush()


class ContentConstraint:
    """A constraint (see `output_control`) on the content alone: in the reasoning anything may come.

    It is begun once, for one answer, however many generations that takes.
    """

    def __init__(self, constraint, reader: AnswerReader):
        """Raises UsageError if `constraint` is none."""
        self._constraint = begun(constraint)
        self._reader = reader

    def begin(self) -> ContentConstraint:
        return self

    def mask(self, logits):
        return logits if self._reader.inside else self._constraint.mask(logits)

    def accept(self, token: int) -> None:
        if not self._reader.inside:
            self._constraint.accept(token)

    @property
    def complete(self) -> bool:
        return not self._reader.inside and self._constraint.complete


@dataclass(frozen=True)
class ChatItem:
    """One step of an answer.

    reasoning, content: what became certain with this step; either may be empty.
    token: the new token's id; None in a last item that brings none.
    n_prompt, n_cached: tokens of the prompt, and how many of them were in the cache.
    n_reasoning: of the n_generated tokens, how many are reasoning.
    first_token_seconds: from `ask` on. prefill_tps, decode_tps: as in Item, 0 before the first.
    finish_reason: None until the last item: "stop", "length", "repetition" or "cancelled".
    cut_in: where "length" cut: in "thinking", in the "answer", or in the "prompt", which did not fit.
    logprobs: of the token, where they were asked for.
    """

    reasoning: str
    content: str
    token: Optional[int]
    n_prompt: int
    n_cached: int
    n_generated: int
    n_reasoning: int
    first_token_seconds: float
    prefill_tps: float
    decode_tps: float
    finish_reason: Optional[str] = None
    cut_in: Optional[str] = None
    logprobs: Optional[Logprobs] = None


class Turn:
    """A question on its way to becoming two messages."""

    def __init__(self, messages, prompt_ids, reader, n_most, sampling, began):
        self.messages = messages  # with the question
        self.prompt_ids = prompt_ids
        self.later_ids = []  # of the answer, and what was put into it
        self.reader = reader
        self.n_most = n_most  # tokens of the answer
        self.sampling = sampling
        self.items = None  # of session.generate
        self.stream = lambda: None  # weak: an answer that nobody holds has ended
        self.cancelled = False
        self.began = began  # when it was asked, by time.perf_counter
        self.n_prompt, self.n_cached, self.n_generated = len(prompt_ids), 0, 0
        self.first_token_seconds = self.prefill_seconds = self.decode_seconds = 0.0
        self.reasoning, self.content = [], []

    def next_item(self):
        """The next Item of the session, its time counted."""
        started = time.perf_counter()
        item = next(self.items)
        now = time.perf_counter()
        if item.token is not None:
            if self.n_generated == 0:
                self.first_token_seconds, self.prefill_seconds = now - self.began, now - started
            else:
                self.decode_seconds += now - started
            self.n_generated += 1
            self.later_ids.append(item.token)
        return item

    def item(self, reasoning, content, token, logprobs=None, finish_reason=None, cut_in=None) -> ChatItem:
        """The ChatItem of this moment; its texts become part of the answer."""
        self.reasoning.append(reasoning)
        self.content.append(content)
        n, n_decoded = self.n_generated, self.n_generated - 1
        return ChatItem(
            reasoning, content, token, self.n_prompt, self.n_cached, n, self.reader.n_reasoning,
            self.first_token_seconds,
            (self.n_prompt - self.n_cached) / self.prefill_seconds if n else 0.0,
            n_decoded / self.decode_seconds if n_decoded > 0 else 0.0,
            finish_reason, cut_in, logprobs,
        )  # fmt: skip

    def answer(self) -> dict:
        """The message."""
        message = {"role": "assistant", "content": "".join(self.content)}
        if self.reader.has_reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        return message
