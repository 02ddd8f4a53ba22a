"""Generation: prefill, then one token at a time, streamed as Items.

A Writer is what turns the logits of an answer into tokens and text. It does so for one session here, and for
each request of a batch in `batching`: one piece of code, so that both give the same answer.
"""

from __future__ import annotations

import ctypes
import numbers
import sys
import time
from dataclasses import dataclass
from typing import Optional

from . import _native
from .errors import CancelledError, ContextFullError, UsageError, whole_number
from .output_control import Logprobs, OutputControl
from .speculation import Speculation


@dataclass(frozen=True)
class Item:
    """One step of a generation.

    text: what became certain with this step; may be empty, may hold the text of several tokens.
    token: the new token's id; None only in the last item of a cancelled generation.
    prefill_tps, decode_tps: tokens per second so far, without the consumer's own time; 0 before the first.
    finish_reason: None until the last item: "stop" (an end token or a stop string, whose text is not shown),
        "length" (max_new_tokens or the context is reached) or "cancelled".
    logprobs: of the token, where they were asked for.
    """

    text: str
    token: Optional[int]
    n_prompt: int
    n_generated: int
    prefill_tps: float
    decode_tps: float
    finish_reason: Optional[str]
    logprobs: Optional[Logprobs] = None


class StopMatcher:
    """Holds back text only as long as it may become one of the stop strings."""

    def __init__(self, stops):
        self._stops = stops
        self._held = ""

    def add(self, text: str):
        """(text to show, whether a stop string was completed); nothing behind the stop string is shown."""
        text = self._held + text
        found = [index for index in (text.find(stop) for stop in self._stops) if index >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        keep = min(longest, len(text))
        while keep and not any(stop.startswith(text[len(text) - keep :]) for stop in self._stops):
            keep -= 1
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """What is held back, when nothing more comes."""
        held, self._held = self._held, ""
        return held


class Writer:
    """One answer's way from logits to tokens and text."""

    def __init__(
        self,
        model,
        max_new_tokens=None,
        temperature=None,
        top_k=None,
        top_p=None,
        min_p=None,
        repetition_penalty=None,
        seed=0,
        stop=None,
        logit_bias=None,
        logprobs=None,
        constraint=None,
    ):
        """The options of `generate`, checked. Raises UsageError; FileFormatError where text is needed and the
        file has no tokenizer."""
        config = model.generation_config
        self._sampling = make_sampling(config, temperature, top_k, top_p, min_p, repetition_penalty, seed)
        self.max_new_tokens = most_new_tokens(model, max_new_tokens)
        stops = stop_strings(stop)
        self._control = OutputControl(model.info.n_vocab, logit_bias, logprobs, constraint)
        needs_text = stops or "tokenizer.json" in model.bundle
        self._detokenizer = model.text.detokenizer() if needs_text else None
        self._matcher = StopMatcher(stops)
        self._model = model
        self.n_generated = 0

    def choose(self, logits, session) -> tuple:
        """(token, its Logprobs or None), drawn from the logits [V] of the session's last token."""
        control = self._control
        token = sample(control.adjust(logits), self._sampling, session._tokens, len(session))
        self.n_generated += 1
        if token not in self._model.eos_ids:
            control.accept(token)
        return token, control.logprobs(logits, token)

    def write(self, token: int, session) -> tuple:
        """(text that became certain with the chosen token, why the answer ends or None)."""
        if token in self._model.eos_ids:
            return self._matcher.flush(), "stop"
        text, stopped = "", False
        if self._detokenizer is not None:
            text, stopped = self._matcher.add(self._detokenizer.add(token))
        if stopped:
            return text, "stop"
        if self._control.complete:
            return text + self._matcher.flush(), "stop"
        if self.n_generated >= self.max_new_tokens or len(session) >= self._model.info.n_ctx:
            return text + self._matcher.flush(), "length"
        return text, None

    def flush(self) -> str:
        """The text held back, of an answer that ends early."""
        return self._matcher.flush()


def generate(session, prompt, speculate=True, **options):
    """Appends `prompt` to the session and yields an Item per new token.

    prompt: token ids, or a str, which is tokenized as it is (with one BOS at the start of a session, where
    the model has one). speculate: guess ahead where the answer repeats what stood before (see `speculation`);
    it changes the speed alone. Options:

    max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty: None means the file's
        generation_config; where that has no max_new_tokens, it is what the context holds. temperature 0, or
        do_sample false in the file, is greedy. top_k 0, top_p 1, min_p 0 and repetition_penalty 1 are off.
    seed: the random number for a token depends on it and the token's place in the session alone.
    stop: a string or several.
    logit_bias: {token id: number from -100 to 100}, added to the logits before all else.
    logprobs: how many of the likeliest tokens each Item shall tell beside its own; None = no logprobs at all.
    constraint: what the text must keep to, see `constraint`; the one given is not changed.

    The last token is not in the session's cache: it was no input. Arguments are checked before the first
    step. Raises UsageError, ContextFullError; FileFormatError where text is needed and the file has no
    tokenizer.
    """
    model = session.model
    writer = Writer(model, **options)
    if not isinstance(speculate, bool):
        raise UsageError(f"speculate {speculate!r}, expected True or False")
    if isinstance(prompt, str):
        prompt = model.text.encode(prompt, bos=len(session) == 0)
    return _stream(session, prompt_ids(model, prompt, len(session)), writer, speculate)


def prompt_ids(model, prompt, n_before: int):
    """`prompt`, token ids, as int32 [T]; ContextFullError if they do not fit behind `n_before` tokens."""
    ids = model.check_ids(prompt)
    needed = n_before + len(ids)
    if needed > model.info.n_ctx:
        raise ContextFullError(
            f"the prompt needs {needed} tokens of context ({n_before} are in the session, {len(ids)} are "
            f"new), the limit is {model.info.n_ctx}: shorten it, or load the model with a larger n_ctx"
        )
    return ids


def most_new_tokens(model, max_new_tokens) -> int:
    """max_new_tokens; None means the generation_config's, else what the context holds."""
    if max_new_tokens is None:
        max_new_tokens = model.generation_config.get("max_new_tokens")
    if max_new_tokens is None:
        return model.info.n_ctx
    return whole_number("max_new_tokens", max_new_tokens, 1, sys.maxsize)


def stop_strings(stop) -> list:
    """`stop`, a text or several or None, as a list; UsageError for what is no stop string."""
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    several = isinstance(stops, (list, tuple, set, frozenset))
    if not several or not all(isinstance(text, str) and text for text in stops):
        raise UsageError(f"stop {stop!r}, expected a text or several, none of them empty")
    return list(stops)


def _stream(session, ids, writer, speculate):
    model, handle = session.model, session._handle
    cancel_is_old, handle.cancel_came_late = handle.cancel_came_late, False
    n_cancels = handle.n_cancels
    prefill_seconds = decode_seconds = 0.0
    speculation, token = None, None

    def item(text, token, finish_reason, logprobs=None):
        n = writer.n_generated
        return Item(
            text,
            token,
            len(ids),
            n,
            len(ids) / prefill_seconds if n else 0.0,
            (n - 1) / decode_seconds if n > 1 else 0.0,
            finish_reason,
            logprobs,
        )

    while True:
        started = time.perf_counter()
        try:
            if speculate and writer.n_generated == 1:
                speculation = Speculation(session)
            if speculation is None:
                (logits,) = model.forward([(session, ids if token is None else [token], "last")])
            else:
                n_left = writer.max_new_tokens - writer.n_generated
                logits = _look_ahead(session, speculation, token, n_left)
        except CancelledError:
            if cancel_is_old and handle.n_cancels == n_cancels:
                cancel_is_old = False
                continue
            yield item(writer.flush(), None, "cancelled")
            return
        token, logprobs = writer.choose(logits, session)
        seconds = time.perf_counter() - started
        if writer.n_generated == 1:
            prefill_seconds = seconds
        else:
            decode_seconds += seconds
        text, finish_reason = writer.write(token, session)
        if finish_reason:
            handle.cancel_came_late = handle.n_cancels != n_cancels
        yield item(text, token, finish_reason, logprobs)
        if finish_reason:
            return


def _look_ahead(session, speculation, token: int, n_left: int):
    """The logits after `token`, of an answer that may have `n_left` tokens after it."""
    logits = speculation.take(token)
    if logits is not None:
        return logits
    most = min(n_left, session.model.info.n_ctx - len(session)) - 1
    step = speculation.inputs(token, most)
    with session._handle.use():  # nobody sees the drafts between the two
        started = time.perf_counter()
        (rows,) = session.model.forward([(session, step, "all")])
        return speculation.give(rows, time.perf_counter() - started)


def resolve_temperature(config: dict, given):
    """`given`; None means what a generation_config says. 0 is greedy."""
    if given is not None:
        return given
    if not config.get("do_sample"):
        return 0.0
    configured = config.get("temperature")
    return 1.0 if configured is None else configured


def make_sampling(
    config: dict, temperature, top_k, top_p, min_p, repetition_penalty, seed
) -> _native.Sampling:
    """Sampling parameters with the defaults of a generation_config; UsageError for one out of its range."""
    values = {"temperature": resolve_temperature(config, temperature)}
    for name, given, off in (
        ("top_k", top_k, 0),
        ("top_p", top_p, 1.0),
        ("min_p", min_p, 0.0),
        ("repetition_penalty", repetition_penalty, 1.0),
    ):
        configured = config.get(name)
        values[name] = given if given is not None else configured if configured is not None else off
    for name, low, high in (
        ("temperature", 0, 1e6),
        ("top_p", 0, 1),
        ("min_p", 0, 1),
        ("repetition_penalty", 1e-6, 1e6),
    ):
        value = values[name]
        if not isinstance(value, numbers.Real) or not low <= value <= high:  # a NaN is in no range
            raise UsageError(f"{name} {value!r}, expected a number from {low:g} to {high:g}")
    values["top_k"] = whole_number("top_k", values["top_k"], 0, 2**31 - 1)
    values["seed"] = whole_number("seed", seed, 0, 2**64 - 1)
    return _native.Sampling(struct_size=ctypes.sizeof(_native.Sampling), **values)


def sample(logits, sampling: _native.Sampling, history, position: int) -> int:
    """Draws a token from float32 logits [V]. `history`: array('i') of the ids before it."""
    token = ctypes.c_int32()
    # The penalty alone reads it; a copy, since calls of other threads may change the session meanwhile.
    history = history[:] if sampling.repetition_penalty != 1 else history[:0]
    history_address, n_history = history.buffer_info()
    _native.check(
        _native.library().ek_sample(
            logits.ctypes.data,
            len(logits),
            ctypes.byref(sampling),
            history_address,
            n_history,
            position,
            ctypes.byref(token),
        )  # fmt: skip
    )
    return token.value
