"""The interface that the exporter sees, whatever the weights come from."""

from __future__ import annotations

import numpy as np

from lite_runtime.errors import FileFormatError

from .config import DecoderConfig, tensor_shapes

# Elements per step where a big tensor is checked or converted: bounds the temporaries to a few megabytes.
CHUNK = 1 << 21


class Checkpoint:
    """A model's configuration, its tensors (read when asked for) and the files that belong to its text side.

    config: the decoder's shape.
    files: name → bytes of config.json, tokenizer.json, tokenizer_config.json (with the chat template) and
        generation_config.json, and of LICENSE where the source has one.
    source: where it comes from, for people and for the manifest.
    """

    def __init__(self, config: DecoderConfig, files: dict[str, bytes], source: str):
        self.config = config
        self.files = files
        self.source = source
        self._shapes = tensor_shapes(config)

    @property
    def tensor_names(self) -> list[str]:
        """Canonical Hugging Face names in the order of the forward pass; no lm_head where it is tied."""
        return list(self._shapes)

    def tensor(self, name: str) -> np.ndarray:
        """A new float32 array of the tensor's shape; FileFormatError if it has NaN or infinite values."""
        shape = self._shapes[name]
        values = self._read(name)
        if values.shape != shape or values.dtype != np.float32:
            raise AssertionError(f"{name}: reader returned {values.dtype} {values.shape} for {shape}")
        _check_finite(values, f"{self.source}: tensor {name}")
        return values

    def _read(self, name: str) -> np.ndarray:
        raise NotImplementedError


def _check_finite(values: np.ndarray, what: str) -> None:
    flat = values.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        finite = np.isfinite(flat[start : start + CHUNK])
        if not finite.all():
            index = np.unravel_index(start + int(np.argmin(finite)), values.shape)
            place = ", ".join(str(int(i)) for i in index)
            raise FileFormatError(
                f"{what} has a NaN or infinite value (first at [{place}]); the weights are damaged"
            )
