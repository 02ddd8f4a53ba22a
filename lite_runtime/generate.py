"""Generation: prefill, then one token at a time, streamed as Items."""

from __future__ import annotations

import ctypes
import numbers
import sys
import time
from dataclasses import dataclass
from typing import Optional

from . import _native
from .errors import CancelledError, ContextFullError, UsageError, whole_number
from .speculation import Speculation


@dataclass(frozen=True)
class Item:
    """One step of a generation.

    text: what became certain with this step; may be empty, may hold the text of several tokens.
    token: the new token's id; None only in the last item of a cancelled generation.
    prefill_tps, decode_tps: tokens per second so far, without the consumer's own time; 0 before the first.
    finish_reason: None until the last item: "stop" (an end token or a stop string, whose text is not shown),
        "length" (max_new_tokens or the context is reached) or "cancelled".
    """

    text: str
    token: Optional[int]
    n_prompt: int
    n_generated: int
    prefill_tps: float
    decode_tps: float
    finish_reason: Optional[str]


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


def generate(
    session, prompt, max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, stop,
    speculate,
):  # fmt: skip
    """Appends `prompt` to the session and yields an Item per new token.

    prompt: token ids, or a str, which is tokenized as it is (with one BOS at the start of a session, where
    the model has one). None means the file's generation_config; where that has no max_new_tokens, it is what
    the context holds. temperature 0, or do_sample false in the file, is greedy. top_k 0, top_p 1, min_p 0 and
    repetition_penalty 1 are off. The random number for a token depends on `seed` and the token's place in the
    session alone. stop: a string or several. speculate: guess ahead where the answer repeats what stood
    before (see `speculation`); it changes the speed alone. The last token is not in the session's cache: it
    was no input.

    Arguments are checked before the first step. Raises UsageError, ContextFullError; FileFormatError where
    text is needed and the file has no tokenizer.
    """
    model = session.model
    sampling = make_sampling(
        model.generation_config, temperature, top_k, top_p, min_p, repetition_penalty, seed
    )
    max_new_tokens = most_new_tokens(model, max_new_tokens)
    stops = stop_strings(stop)
    if not isinstance(speculate, bool):
        raise UsageError(f"speculate {speculate!r}, expected True or False")
    if isinstance(prompt, str):
        prompt = model.text.encode(prompt, bos=len(session) == 0)
    ids = model.check_ids(prompt)
    needed = len(session) + len(ids)
    if needed > model.info.n_ctx:
        raise ContextFullError(
            f"the prompt needs {needed} tokens of context ({len(session)} are in the session, {len(ids)} are "
            f"new), the limit is {model.info.n_ctx}: shorten it, or load the model with a larger n_ctx"
        )
    detokenizer = model.text.detokenizer() if stops or "tokenizer.json" in model.bundle else None
    return _stream(session, ids, max_new_tokens, sampling, detokenizer, StopMatcher(stops), speculate)


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


def _stream(session, ids, max_new_tokens, sampling, detokenizer, matcher, speculate):
    model, handle = session.model, session._handle
    cancel_is_old, handle.cancel_came_late = handle.cancel_came_late, False
    n_cancels = handle.n_cancels
    n_generated, prefill_seconds, decode_seconds = 0, 0.0, 0.0
    speculation, token = None, None

    def item(text, token, finish_reason):
        return Item(
            text,
            token,
            len(ids),
            n_generated,
            len(ids) / prefill_seconds if n_generated else 0.0,
            (n_generated - 1) / decode_seconds if n_generated > 1 else 0.0,
            finish_reason,
        )

    while True:
        started = time.perf_counter()
        try:
            if speculate and n_generated == 1:
                speculation = Speculation(session)
            if speculation is None:
                (logits,) = model.forward([(session, ids if token is None else [token], "last")])
            else:
                logits = _look_ahead(session, speculation, token, max_new_tokens - n_generated)
        except CancelledError:
            if cancel_is_old and handle.n_cancels == n_cancels:
                cancel_is_old = False
                continue
            yield item(matcher.flush(), None, "cancelled")
            return
        token = sample(logits, sampling, session._tokens, len(session))
        seconds = time.perf_counter() - started
        if n_generated == 0:
            prefill_seconds = seconds
        else:
            decode_seconds += seconds
        n_generated += 1

        text, finish_reason = "", None
        if token in model.eos_ids:
            finish_reason = "stop"
        elif detokenizer is not None:
            text, stopped = matcher.add(detokenizer.add(token))
            if stopped:
                finish_reason = "stop"
        if finish_reason is None and (n_generated == max_new_tokens or len(session) == model.info.n_ctx):
            finish_reason = "length"
        if finish_reason:
            handle.cancel_came_late = handle.n_cancels != n_cancels
            yield item(text + matcher.flush(), token, finish_reason)
            return
        yield item(text, token, None)


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


def make_sampling(
    config: dict, temperature, top_k, top_p, min_p, repetition_penalty, seed
) -> _native.Sampling:
    """Sampling parameters with the defaults of a generation_config; UsageError for one out of its range."""
    if temperature is None:
        configured = config.get("temperature")
        temperature = (1.0 if configured is None else configured) if config.get("do_sample") else 0.0
    values = {"temperature": temperature}
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
