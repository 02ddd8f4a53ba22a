"""A model that answers: what lies between HTTP and the running batch."""

from __future__ import annotations

import asyncio
import contextlib
import time

import lite_runtime
from lite_runtime.batching import Batcher
from lite_runtime.errors import EdgeKitError, ShuttingDownError
from lite_runtime.pool import SessionPool

from .answer_cache import AnswerCache
from .errors import HttpError, retry_after
from .metrics import Metrics
from .question import Asker, Question
from .settings import MEGABYTE, Settings


class Answer:
    """The BatchItems of a question, for the event loop. Iterate over it once.

    items: those taken so far. request: of the batch; None for an answer that was kept.
    """

    def __init__(self, question: Question, kept=None):
        """kept: of the answer cache, of an answer that is given again."""
        self.question = question
        self._kept = kept
        self.request = None
        self.items = []
        self._queue = asyncio.Queue()
        for item in kept.items if kept else ():
            self.put(item)

    def put(self, item) -> None:
        """An item, or the exception that ended the answer, has come."""
        self._queue.put_nowait(item)

    @property
    def n_cached(self) -> int:
        """Tokens of the prompt that were not computed."""
        return len(self.question.ids) if self.request is None else self.request.n_cached

    @property
    def has_reasoning(self) -> bool:
        """Whether it has a block of reasoning so far, be it empty."""
        return (self._kept or self.question).has_reasoning

    @property
    def n_reasoning(self) -> int:
        """Tokens of reasoning so far."""
        return (self._kept or self.question).n_reasoning

    @property
    def n_generated(self) -> int:
        """Tokens so far."""
        return self.items[-1].n_generated if self.items else 0

    @property
    def timed_out(self) -> bool:
        """Whether its deadline ended it."""
        return self.request is not None and self.request.timed_out

    def cancel(self) -> None:
        """Ends it with the step that runs."""
        if self.request is not None:
            self.request.cancel()

    async def __aiter__(self):
        while True:
            item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            self.items.append(item)
            yield item
            if item.finish_reason is not None:
                return


class Service:
    """Begins as "loading": `load` makes it answer. `close` ends it."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.model = self.batcher = self.pool = self._asker = None
        self.answer_cache = AnswerCache(int(settings.answer_cache_mb * MEGABYTE))
        self.metrics = Metrics(self)
        self._load_error = None
        self.name = settings.name
        self.created = int(time.time())
        self._stopping = False
        self._n_making = 0  # questions on their way to the queue

    def load(self) -> None:
        """Opens the model and reads its weights once. Raises EdgeKitError."""
        settings = self.settings
        try:
            model = lite_runtime.load(
                settings.file, n_threads=settings.threads, n_ctx=settings.n_ctx, kv_dtype=settings.kv_dtype
            )
            self._asker = Asker(model, settings)
            model.text.detokenizer()
            with model.session() as session:
                model.forward([(session, [0], "none")])
            self.pool = SessionPool(model, int(settings.cache_mb * MEGABYTE))
            self.batcher = Batcher(
                model, settings.max_batch, settings.prefill_chunk, settings.max_queue, self.pool
            )
            self.name = settings.name or model.manifest.get("name") or "model"
            self.model = model
        except Exception as error:
            self._load_error = error
            raise
        if self._stopping:
            self.batcher.shut_down()

    @property
    def error(self):
        """Why it can never answer (again): `load` failed, or the batch did. None as a rule."""
        return self._load_error or (self.batcher.error if self.batcher is not None else None)

    @property
    def status(self) -> str:
        """ "loading", "ready", "overloaded" (requests are refused) or "stopping"."""
        if self._stopping:
            return "stopping"
        if self.model is None:
            return "loading"
        stats = self.batcher.stats()
        most = self.settings.max_batch + self.settings.max_queue
        return "overloaded" if stats.running + stats.waiting >= most else "ready"

    def require_model(self, name=None) -> None:
        """Raises HttpError unless the model answers, and by that name."""
        if self.model is None and not self._stopping:
            raise HttpError(503, "the model is being loaded", "loading", headers=retry_after(1))
        if self._stopping:
            raise ShuttingDownError("no more answers are begun: shutting down")
        if name is not None and name != self.name:
            raise HttpError(
                404,
                f"there is no model {name!r} here, this server has {self.name!r}",
                "model_not_found",
                "model",
            )

    async def chat(self, body, owner, max_tokens=None, n_logprobs=None) -> Answer:
        """The Answer to a body with messages. Raises EdgeKitError, HttpError."""
        return await self._ask(self._asker.chat, body, owner, max_tokens, n_logprobs)

    async def completion(self, body, prompt, owner, max_tokens=None, n_logprobs=None) -> Answer:
        """The Answer to a prompt, a text or token ids. Raises EdgeKitError, HttpError."""
        return await self._ask(self._asker.completion, body, prompt, owner, max_tokens, n_logprobs)

    async def _ask(self, make, *arguments) -> Answer:
        # A long prompt takes a while until it is tokens: more of them than have a place are not begun.
        self.batcher.check_place(self._n_making)
        self._n_making += 1
        try:
            question = await asyncio.to_thread(make, *arguments)
        finally:
            self._n_making -= 1
        kept = self.answer_cache.get(question.cache_key)
        if kept is not None:
            return Answer(question, kept)
        answer, items = Answer(question), []
        loop, clock = asyncio.get_running_loop(), self.metrics.clock()

        def on_item(item):  # in the batch's thread
            clock.item(item)
            items.append(item)
            loop.call_soon_threadsafe(answer.put, item)
            if isinstance(item, Exception) or item.finish_reason is None:
                return
            if item.finish_reason != "cancelled":
                self.answer_cache.put(question.cache_key, items, question.has_reasoning, question.n_reasoning)
            if question.has_reasoning and item.n_generated:
                loop.call_soon_threadsafe(self._prepare_next_turn, question, items)

        answer.request = self.batcher.submit(question.ids, on_item=on_item, **question.options)
        return answer

    def _prepare_next_turn(self, question, items) -> None:
        """What the next prompt begins with is computed when nothing else is: the template may drop the
        reasoning, which moves the answer."""

        def prepare():
            answer = {"role": "assistant", "content": "".join(item.text for item in items)}
            if any("reasoning_content" in message for message in question.messages):  # so it will come back
                answer["reasoning_content"] = "".join(item.reasoning for item in items)
            with contextlib.suppress(EdgeKitError):  # the next question will tell
                self.batcher.prefill(self._asker.next_beginning(question, answer), question.options["owner"])

        asyncio.get_running_loop().run_in_executor(None, prepare)

    def shut_down(self) -> None:
        """From now on nothing is begun; what runs goes on."""
        self._stopping = True
        if self.batcher is not None:
            self.batcher.shut_down()

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs."""
        return self.batcher is None or self.batcher.stats().running == 0

    def cancel_all(self) -> None:
        """`shut_down`, and ends what runs, as cancelled. Blocks for a step."""
        self.shut_down()
        if self.batcher is not None:
            self.batcher.close(0)

    def close(self) -> None:
        """`cancel_all`, and frees the model."""
        self.cancel_all()
        if self.pool is not None:
            self.pool.close()
        if self.model is not None:
            self.model.close()
