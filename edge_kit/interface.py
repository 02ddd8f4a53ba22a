"""What the program of an exported decoder takes and gives, as its feed and fetch ops tell."""

from __future__ import annotations

import numpy as np

from edge_kit.nb.reader import NbFile
from lite_runtime.errors import UnsupportedError, UsageError

MASKED = np.float32(-1e9)


class Interface:
    """What a decoder's program takes and gives, read from its feed and fetch ops.

    inputs        names by column: input_ids, positions, attention_mask, past_key_0, past_value_0, …
    outputs       variables by column: logits, then the cache in the order of the inputs
    cache_shapes  (KV, D) of each past input
    n_vocab       width of the logits
    """

    def __init__(self, file: NbFile):
        self.inputs = file.program.inputs
        self.outputs = file.program.outputs
        self.past = self.inputs[3:]
        expected = [f"past_{kind}_{i}" for i in range(len(self.past) // 2) for kind in ("key", "value")]
        if (
            self.inputs[:3] != ["input_ids", "positions", "attention_mask"]
            or self.past != expected
            or len(self.outputs) != 1 + len(self.past)
        ):
            raise UnsupportedError(
                f"{file.path}: not a decoder this kit exports: it takes "
                f"{', '.join(self.inputs[:5]) or 'nothing'} and gives {len(self.outputs)} tensors; expected "
                "input_ids, positions, attention_mask and a key and a value per layer, and one more output "
                "than these caches"
            )
        shapes = {var.name: var.shape for var in file.program.vars}
        self.cache_shapes = [(shapes[name][0], shapes[name][2]) for name in self.past]
        self.n_vocab = shapes[self.outputs[0]][-1]


def causal_mask(length: int, n_new: int) -> np.ndarray:
    """[T, S]: 0 where new token t may see key s (s <= length + t), -1e9 elsewhere."""
    visible = np.arange(length + n_new) <= length + np.arange(n_new)[:, None]
    return np.where(visible, np.float32(0), MASKED)


def checked_ids(ids, n_vocab: int) -> np.ndarray:
    """int64 [T]; UsageError for an empty list or an id outside the vocabulary."""
    ids = np.asarray(ids, np.int64).reshape(-1)
    if not ids.size:
        raise UsageError("a forward needs at least one token id; none was given")
    if ids.min() < 0 or ids.max() >= n_vocab:
        raise UsageError(f"token ids run from {ids.min()} to {ids.max()}; the vocabulary has {n_vocab}")
    return ids
