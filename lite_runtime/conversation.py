"""A conversation: messages in, an answer out, and a cache that is kept as far as the next prompt repeats it.

    with Conversation(model, system="Be brief.") as conversation:
        for item in conversation.ask("How many prime numbers are there?"):
            print(item.content, end="", flush=True)

The prompt of a turn is all messages in the model's own template. Of the cache, what this prompt begins with,
token by token, is used again; only the rest is computed. A template that drops earlier thinking moves the
answers behind it. What the next prompt begins with is therefore prefilled while nobody waits: right after an
answer, in a thread, or when the caller calls `settle`.

Threads: one thread at a time; `cancel` and `close` may come from any at any time, and the thread of the idle
time makes way for every other call.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
import weakref

from .answer import AnswerReader, ContentConstraint, Turn
from .conversation_file import check_messages, read_messages, session_path, write_messages
from .errors import CancelledError, ContextFullError, EdgeKitError, UsageError, whole_number
from .generate import most_new_tokens, stop_strings
from .idle_prefill import IDLE_CHUNK
from .session import common_prefix
from .thinking import Tags

OVERFLOWS = ("error", "stop", "slide")


def render(text, tags: Tags, messages: list) -> str:
    """The prompt: the template of `text`, a Text, over the messages as the model writes them, thinking and
    all; what it drops is its matter. Raises as `Text.render`."""
    written = []
    for message in messages:
        message = dict(message)
        reasoning = message.pop("reasoning_content", None)
        written.append({**message, "content": tags.join(reasoning, message["content"])})
    return text.render(written)


def next_beginning(text, tags: Tags, messages: list) -> list:
    """Ids that all prompts begin with which a next question behind `messages` may make; none if the template
    refuses one."""
    try:
        prompts = [render(text, tags, [*messages, {"role": "user", "content": asked}]) for asked in "ab"]
    except UsageError:  # the next question will tell
        return []
    return text.encode(os.path.commonprefix(prompts), bos=False)


class Conversation:
    """messages: dicts with "role", "content" and, where the model thought, "reasoning_content". Question and
    answer join them when the answer ends; between answers they may be changed."""

    def __init__(
        self,
        model,
        system=None,
        overflow="error",
        thinking_budget=None,
        stop_at_repetition=True,
        prefill_when_idle=True,
        messages=(),
        session=None,
    ):
        """system: text of a system message in front. overflow: what happens to a prompt that the context does
        not hold: "error" raises ContextFullError, "stop" answers with nothing but finish_reason "length",
        "slide" forgets the oldest turns, never the system message; also amid an answer. thinking_budget: most
        tokens of reasoning, then the model must answer. stop_at_repetition: end an answer that goes round in
        circles. prefill_when_idle: `settle` by itself. session: one to go on with; `close` closes it."""
        if overflow not in OVERFLOWS:
            raise UsageError(f"overflow {overflow!r}, expected one of {', '.join(OVERFLOWS)}")
        if thinking_budget is not None:
            thinking_budget = whole_number("thinking_budget", thinking_budget, 0, sys.maxsize)
        first = [] if system is None else [{"role": "system", "content": system}]
        self.messages = check_messages([*first, *messages])
        self.model = model
        self.overflow = overflow
        self.thinking_budget = thinking_budget
        self.stop_at_repetition = stop_at_repetition
        self.prefill_when_idle = prefill_when_idle
        self._tags = Tags.of_template(model.text.template_source)
        self._closing = model.text.encode(self._tags.closing, bos=False)
        self._lock = threading.RLock()  # held while the idle time uses the session, and by calls that change
        self._epochs = itertools.count()
        self._epoch = next(self._epochs)  # another one: idle time has ended
        self._turn = None  # the one being answered
        self.session = model.session() if session is None else session

    def ask(self, text: str, max_new_tokens=None, stop=None, **sampling):
        """Yields the ChatItems of the answer. Options: those of `session.generate`; stop strings count in the
        content alone. Arguments are checked at once. An answer that is left early counts as cancelled; one
        that has no token yet leaves no trace."""
        began = time.perf_counter()
        with self._alone():
            self._end_turn()
            n_most, stops = most_new_tokens(self.model, max_new_tokens), stop_strings(stop)
            messages = check_messages([*self.messages, {"role": "user", "content": text}])
            try:
                closing = self._closing if self.thinking_budget == 0 else []
                messages, prompt, ids = self._fit(messages, closing, n_most)
            except ContextFullError:
                if self.overflow != "stop":
                    raise
                messages, prompt, ids = messages, "", []
            reader = AnswerReader(prompt, self._tags, self.thinking_budget, stops, self.stop_at_repetition)
            ids = reader.opening(ids, self._closing)
            if sampling.get("constraint") is not None:
                sampling["constraint"] = ContentConstraint(sampling["constraint"], reader)
            turn = Turn(messages, ids, reader, n_most, sampling, began)
            if ids:
                turn.n_cached = self._generate(turn)
            self._turn = turn
            stream = self._answer(turn)
            turn.stream = weakref.ref(stream)
            return stream

    def settle(self) -> None:
        """Prefills what the next prompt begins with, whatever is asked; for idle time. Any other call makes
        it end early, with what it has done."""
        epoch, target = self._epoch, None
        while True:
            with self._lock:
                if epoch != self._epoch or self._turn is not None or not threading.main_thread().is_alive():
                    return  # a question has come, or the program ends
                if target is None:
                    target = next_beginning(self.model.text, self._tags, self.messages)
                if len(target) > self.model.info.n_ctx:
                    return
                common = common_prefix(self.session._tokens, target)
                if common == len(target):
                    return
                self.session.cut(common)
                chunk = target[common : common + IDLE_CHUNK]
                try:
                    self.model.forward([(self.session, chunk, "none")])
                except CancelledError:
                    handle = self.session._handle
                    if not handle.cancel_came_late:
                        return
                    handle.cancel_came_late = False  # it was meant for the answer before

    def cancel(self) -> None:
        """Ends the running answer, and what runs in idle time. Any thread, also a signal handler."""
        turn = self._turn
        if turn is None:
            self._epoch = next(self._epochs)
            return
        turn.cancelled = True
        self.session.cancel()
        if self._turn is not turn:  # it ended meanwhile: the next answer shall not
            self.session._handle.cancel_came_late = True

    def reset(self, system=None) -> None:
        """Forgets all but the system messages; with `system`, these too, for a new one."""
        with self._alone():
            self._end_turn()
            if system is None:
                self.messages = self.messages[: _n_system(self.messages)]
            else:
                self.messages = check_messages([{"role": "system", "content": system}])

    def save(self, path) -> None:
        """Writes messages and cache, see `conversation_file`; of a running answer nothing but its cache.
        Raises EdgeKitError if a file cannot be written."""
        with self._alone():
            self.session.save(session_path(path))
            write_messages(path, self.messages)
            if self._turn is None:
                self._settle_in_thread()

    @classmethod
    def load(cls, model, path, **options) -> Conversation:
        """The conversation that `save` wrote; `options` as when it was made. Raises FileFormatError: not one,
        or damaged; MismatchError: its cache is of another model; ContextFullError, EdgeKitError."""
        messages, cache = read_messages(path), session_path(path)
        session = model.restore(cache) if os.path.exists(cache) else None
        try:
            return cls(model, messages=messages, session=session, **options)
        except BaseException:
            if session is not None:
                session.close()
            raise

    def close(self) -> None:
        """Cancels what runs and frees the cache. May be called twice."""
        self.cancel()
        self._epoch = next(self._epochs)
        self.session.close()

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_exception) -> None:
        self.close()

    @contextlib.contextmanager
    def _alone(self):
        """Ends the idle time, after the chunk that it is at."""
        self._epoch = next(self._epochs)
        with self._lock:
            yield

    def _end_turn(self) -> None:
        turn = self._turn
        if turn is None:
            return
        stream = turn.stream()
        try:
            if stream is not None:
                stream.close()
        except ValueError:  # it is running, in another thread
            raise UsageError("the conversation is answering: cancel it, or take all its items") from None
        self._finish(turn)

    def _encode(self, messages: list) -> tuple:
        """(rendered prompt, its ids)."""
        prompt = render(self.model.text, self._tags, messages)
        return prompt, self.model.text.encode(prompt, bos=False)

    def _fit(self, messages: list, later_ids: list, n_new: int) -> tuple:
        """(messages, prompt, its ids) that the context holds with `later_ids` behind them. Where turns may be
        forgotten, they are until there is room for `n_new` tokens too, or a quarter of the context."""
        n_ctx = self.model.info.n_ctx
        room = min(n_new, n_ctx // 4)
        while True:
            prompt, ids = self._encode(messages)
            needed = len(ids) + len(later_ids)
            later = _second_turn(messages) if self.overflow == "slide" else None
            if needed <= n_ctx - room or (later is None and needed <= n_ctx):
                return messages, prompt, ids
            if later is None:
                raise ContextFullError(
                    f"the conversation needs {needed} tokens of context, the limit is {n_ctx}: shorten it, "
                    "or load the model with a larger n_ctx"
                )
            messages = messages[: _n_system(messages)] + messages[later:]

    def _generate(self, turn) -> int:
        """Lets the session generate what follows; gives how many tokens its cache had of what is before."""
        ids = turn.prompt_ids + turn.later_ids
        n_cached = self.session.reuse(ids)
        turn.items = self.session.generate(
            ids[n_cached:], max_new_tokens=turn.n_most - turn.n_generated, **turn.sampling
        )
        return n_cached

    def _go_on(self, turn) -> bool:
        """Lets the session go on behind later_ids; False if the context is full and nothing may be
        forgotten."""
        if len(turn.prompt_ids) + len(turn.later_ids) > self.model.info.n_ctx:
            if self.overflow != "slide":
                return False
            n_new = turn.n_most - turn.n_generated
            try:
                turn.messages, _, turn.prompt_ids = self._fit(turn.messages, turn.later_ids, n_new)
            except ContextFullError:
                return False
        self._generate(turn)
        return True

    def _answer(self, turn):
        try:
            yield from self._items(turn)
        finally:
            self._finish(turn)

    def _items(self, turn):
        reader = turn.reader
        if turn.items is None:
            self._finish(turn)
            yield turn.item("", "", None, None, "length", "prompt")
            return
        finish_reason = None
        while finish_reason is None:
            reasoning = content = ""
            token, logprobs, finish_reason = None, None, "cancelled"
            if not turn.cancelled:
                item = turn.next_item()
                token, logprobs, finish_reason = item.token, item.logprobs, item.finish_reason
            if token is not None:
                piece = reader.add(token, item.text)
                reasoning, content = piece.reasoning, piece.content
                finish_reason = piece.finish_reason or finish_reason
                part = "thinking" if reader.inside else "answer"
                full = finish_reason == "length" and turn.n_generated < turn.n_most
                if finish_reason is None and piece.close_thinking:
                    turn.later_ids += self._closing
                    reasoning += reader.closed()
                    full = True
                if full:
                    finish_reason = None if self._go_on(turn) else "length"
            if finish_reason is None:
                yield turn.item(reasoning, content, token, logprobs)
        rest = reader.flush()
        cut_in = part if finish_reason == "length" else None
        last = turn.item(reasoning + rest[0], content + rest[1], token, logprobs, finish_reason, cut_in)
        self._finish(turn)  # before the consumer has it, who may not come back
        yield last

    def _finish(self, turn) -> None:
        with self._lock:
            if self._turn is not turn:
                return
            self._turn = None
            if turn.cancelled:  # the native flag may still be up
                self.session._handle.cancel_came_late = True
            if turn.n_generated:
                self.messages = [*turn.messages, turn.answer()]
                self._settle_in_thread()

    def _settle_in_thread(self) -> None:
        def settle():
            with contextlib.suppress(EdgeKitError):  # closed meanwhile; or the next answer will tell
                self.settle()

        if self.prefill_when_idle:
            # No daemon: Python must not end amid its native call, which the model's end waits for.
            threading.Thread(target=settle).start()


def _n_system(messages: list) -> int:
    """How many system messages stand in front."""
    return next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))


def _second_turn(messages: list):
    """Index of the second turn's question, None if there is only one."""
    questions = [i for i, message in enumerate(messages) if message["role"] == "user"]
    return questions[1] if len(questions) > 1 else None
