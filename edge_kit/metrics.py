"""How far two engines' logits lie apart over a fixed text.

The reference is the engine that is believed, the candidate the one on trial. For a row of logits z,
log p = z - logsumexp(z), in fp64.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

CHUNK = 64  # tokens at a time: the executor's arrays stay in the cache, and fp64 logits take 78 MB at most
NEAR_TIE = 1e-3  # of the largest logit: a gap that rounding can turn over


def log_softmax(logits) -> np.ndarray:
    """log p, fp64 [rows, vocabulary]."""
    z = np.asarray(logits, np.float64)
    z = z - z.max(axis=1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


@dataclass
class Report:
    """What `Comparison` found.

    tokens                rows compared
    top1_agreement        share of rows whose largest logit stands at the same id
    mean_kl               mean over rows of KL(ref || cand) = sum_v p_ref(v) (log p_ref(v) - log p_cand(v))
    perplexity_reference  exp of the mean over predicted tokens of -log p_ref(next token)
    perplexity_candidate  the same with p_cand
    perplexity_ratio      candidate over reference
    largest_difference    max |z_ref - z_cand| / max |z_ref|, both over all rows
    disagreements         rows whose largest logits stand at different ids though it is no near tie: z_ref
                          at the one id is above z_ref at the other by 1e-3 of the row's largest |z_ref|
    """

    tokens: int
    top1_agreement: float
    mean_kl: float
    perplexity_reference: float
    perplexity_candidate: float
    perplexity_ratio: float
    largest_difference: float
    disagreements: int

    def as_dict(self) -> dict:
        return asdict(self)


class Comparison:
    """Gathers the metrics chunk by chunk, so that no more logits than a chunk's are held."""

    def __init__(self):
        self._rows = self._same = self._predicted = self._disagreements = 0
        self._kl = self._loss_reference = self._loss_candidate = 0.0
        self._difference = self._magnitude = 0.0

    def add(self, reference, candidate, next_ids) -> None:
        """Logits [T, vocabulary] of both, and the T tokens that follow (T - 1 if the last row has none)."""
        for begin in range(0, len(reference), CHUNK):
            rows = slice(begin, begin + CHUNK)
            self._add(
                np.asarray(reference[rows], np.float64),
                np.asarray(candidate[rows], np.float64),
                np.asarray(next_ids[rows], np.int64),
            )

    def _add(self, reference, candidate, next_ids) -> None:
        log_p, log_q = log_softmax(reference), log_softmax(candidate)
        self._kl += float((np.exp(log_p) * (log_p - log_q)).sum())
        predicted = np.arange(len(next_ids))
        self._loss_reference -= float(log_p[predicted, next_ids].sum())
        self._loss_candidate -= float(log_q[predicted, next_ids].sum())
        self._predicted += len(next_ids)

        rows = np.arange(len(reference))
        first, second = reference.argmax(axis=1), candidate.argmax(axis=1)
        magnitude = np.abs(reference).max(axis=1)
        gap = (reference[rows, first] - reference[rows, second]) / np.maximum(magnitude, np.finfo(float).tiny)
        self._rows += len(rows)
        self._same += int((first == second).sum())
        # `not <` counts a NaN as a disagreement; `fmax` and `max` would drop one.
        self._disagreements += int(((first != second) & ~(gap < NEAR_TIE)).sum())
        self._difference = np.maximum(self._difference, np.abs(reference - candidate).max())
        self._magnitude = np.maximum(self._magnitude, magnitude.max())

    def report(self) -> Report:
        """The metrics of all that was added."""
        reference = float(np.exp(self._loss_reference / max(self._predicted, 1)))
        candidate = float(np.exp(self._loss_candidate / max(self._predicted, 1)))
        return Report(
            tokens=self._rows,
            top1_agreement=self._same / max(self._rows, 1),
            mean_kl=self._kl / max(self._rows, 1),
            perplexity_reference=reference,
            perplexity_candidate=candidate,
            perplexity_ratio=candidate / reference,
            largest_difference=float(self._difference / self._magnitude) if self._magnitude else 0.0,
            disagreements=self._disagreements,
        )


def compare_text(comparison: Comparison, reference, candidate, ids, chunk: int = CHUNK):
    """Feeds `ids` to two fresh sessions (`forward(ids)` -> logits [T, vocabulary]), chunk by chunk.

    A generator: each chunk is done when it yields the chunk's number of tokens.
    """
    for begin in range(0, len(ids), chunk):
        part, next_ids = ids[begin : begin + chunk], ids[begin + 1 : begin + 1 + chunk]
        comparison.add(reference.forward(part), candidate.forward(part), next_ids)
        yield len(part)


@dataclass
class GreedyReport:
    """Greedy text of two engines, side by side.

    ids       the text; where the engines differ it goes on with the reference's token
    splits    (position, reference's id, candidate's id, gap) of each difference; gap = (z_ref of the one -
              z_ref of the other) / largest |z_ref| of the row
    """

    ids: list[int]
    splits: list[tuple[int, int, int, float]]

    @property
    def equal(self) -> bool:
        """Whether every difference was a near tie."""
        return all(gap < NEAR_TIE for _, _, _, gap in self.splits)


def compare_greedy(reference, candidate, prompt, n_tokens: int) -> GreedyReport:
    """Greedy decoding from `prompt` in two fresh sessions, both fed the same tokens all the way.

    Rounding may turn over a near tie, after which two sound engines would write different texts; so the
    reference's token is forced on both.
    """
    found = GreedyReport([], [])
    ids = list(prompt)
    for position in range(n_tokens):
        first, second = reference.forward(ids)[-1], candidate.forward(ids)[-1]
        token, other = int(np.argmax(first)), int(np.argmax(second))
        if token != other:
            gap = float(first[token] - first[other]) / max(float(np.abs(first).max()), np.finfo(float).tiny)
            found.splits.append((position, token, other, gap))
        found.ids.append(token)
        ids = [token]
    return found
