"""Runs the dygraph decoder, in fp32 the reference that a `.nb` file is judged against."""

from __future__ import annotations

import numpy as np

from edge_kit.interface import causal_mask

from .checkpoint import open_checkpoint
from .tensors import CheckpointTensors, build_decoder


class DygraphSession:
    """One sequence through a dygraph decoder; the cache grows with every forward."""

    def __init__(self, decoder):
        config = decoder.config
        self._decoder = decoder
        empty = np.zeros((config.n_kv_heads, 0, config.head_dim), np.float32)
        self._past = [empty] * (2 * config.n_layers)
        self.length = 0

    def forward(self, ids) -> np.ndarray:
        """Logits fp32 [T, vocabulary] of the T token ids that follow those of earlier calls."""
        import paddle

        positions = np.arange(self.length, self.length + len(ids))
        mask = causal_mask(self.length, len(ids))
        with paddle.no_grad():
            logits, present = self._decoder(
                paddle.to_tensor(np.asarray(ids, np.int64)),
                paddle.to_tensor(positions.astype(np.int64)),
                paddle.to_tensor(mask),
                [paddle.to_tensor(past) for past in self._past],
            )
        self._past = [tensor.numpy() for tensor in present]
        self.length += len(ids)
        return logits.numpy()


def checkpoint_logits(spec: str, quant: str = "fp32") -> DygraphSession:
    """A session over the dygraph decoder of a checkpoint (folder, .gguf, "demo", "random:NAME")."""
    return DygraphSession(build_decoder(CheckpointTensors(open_checkpoint(spec), quant)))
