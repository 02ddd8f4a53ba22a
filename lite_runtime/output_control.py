"""What a caller may ask of an answer's tokens beside sampling: logit bias, logprobs, a constraint.

A constraint is any object with

    begin() -> one of the same kind, for one answer from its start on
    mask(logits) -> the float32 logits [V] with every token that may not come next at LOWEST
    accept(token)   that token came
    complete        True once nothing may come any more

`constraint` has the one for JSON schemas and regular expressions.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Optional

import numpy as np

from .errors import UsageError, whole_number

LOWEST = np.float32(-1e30)  # the sampler takes finite logits alone; no bias or penalty lifts this one
MOST_LOGPROBS = 20  # beside the token's own
_MOST_BIAS = 100


@dataclass(frozen=True)
class Logprobs:
    """Natural logarithms of probabilities, as the model gave them: before bias, constraint and sampling.

    logprob: of the token. top: the likeliest tokens as (id, logprob), best first, the lowest id first among
    equals.
    """

    logprob: float
    top: tuple


class OutputControl:
    """What was asked of one answer."""

    def __init__(self, n_vocab: int, logit_bias=None, logprobs=None, constraint=None):
        """The options as in `generate.generate`; UsageError for what they cannot be."""
        self._bias = _bias(n_vocab, logit_bias)
        self._n_logprobs = (
            None if logprobs is None else whole_number("logprobs", logprobs, 0, min(MOST_LOGPROBS, n_vocab))
        )
        self._constraint = None if constraint is None else begun(constraint)

    def adjust(self, logits):
        """The logits [V] to sample from; those given are left as they are."""
        if self._bias is not None:
            ids, values = self._bias
            logits = logits.copy()
            logits[ids] += values
        if self._constraint is not None:
            logits = self._constraint.mask(logits)
        return logits

    def accept(self, token: int) -> None:
        """The constraint goes on behind `token`."""
        if self._constraint is not None:
            self._constraint.accept(token)

    @property
    def complete(self) -> bool:
        """Whether the constraint lets nothing come any more."""
        return self._constraint is not None and self._constraint.complete

    def logprobs(self, logits, token: int) -> Optional[Logprobs]:
        """Of `token`, if they were asked for."""
        return None if self._n_logprobs is None else logprobs_of(logits, token, self._n_logprobs)


def begun(constraint):
    """The constraint at its start, for one answer; UsageError if it is none."""
    if not hasattr(constraint, "begin"):
        raise UsageError(f"constraint {constraint!r}, expected one of lite_runtime.constraint")
    return constraint.begin()


def logprobs_of(logits, token: int, n_top: int) -> Logprobs:
    """log softmax of float32 logits [V], summed in float64."""
    largest = float(logits.max())
    log_sum = largest + float(np.log(np.exp(logits.astype(np.float64) - largest).sum()))
    top = ()
    if n_top:
        kth = np.partition(logits, len(logits) - n_top)[len(logits) - n_top]
        ids = np.flatnonzero(logits >= kth)
        ids = ids[np.argsort(-logits[ids], kind="stable")][:n_top]
        top = tuple((int(i), float(logits[i]) - log_sum) for i in ids)
    return Logprobs(float(logits[token]) - log_sum, top)


def _bias(n_vocab: int, logit_bias):
    """(ids, values) as arrays, None without any."""
    if not logit_bias:
        if logit_bias is None or isinstance(logit_bias, dict):
            return None
    elif isinstance(logit_bias, dict):
        ids = [whole_number("logit_bias: token id", i, 0, n_vocab - 1) for i in logit_bias]
        for i, value in logit_bias.items():
            number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if not number or not -_MOST_BIAS <= value <= _MOST_BIAS:  # a NaN is in no range
                raise UsageError(
                    f"logit_bias of token {i}: {value!r}, "
                    f"expected a number from -{_MOST_BIAS} to {_MOST_BIAS}"
                )
        return np.array(ids, np.intp), np.array(list(logit_bias.values()), np.float32)
    raise UsageError(f"logit_bias {logit_bias!r}, expected {{token id: number}}")
