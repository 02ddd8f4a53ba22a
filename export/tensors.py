"""The tensors of the program, by the names they have in it, made one at a time from a checkpoint."""

from __future__ import annotations

import numpy as np

from edge_kit.nb import tiles

from .quantize import largest_error, quantize_rows

_CHUNK_VALUES = 1 << 24  # rows are quantized in pieces of about this many values


class CheckpointTensors:
    """Reads, quantizes and lays out each tensor when it is asked for; holds one at a time.

    `errors` collects the largest quantization error of each weight, as a fraction of its largest value.
    """

    def __init__(self, checkpoint, quant: str):
        self.checkpoint = checkpoint
        self.quant = quant
        self.errors: dict[str, float] = {}
        self._last: tuple[str, np.ndarray, np.ndarray] | None = None

    def array(self, name: str) -> np.ndarray:
        """The tensor `name` ("layers.0.mlp.up_proj.scale") as it stands in the program."""
        if name == "rotary.inv_freq":
            return self.checkpoint.config.rope_inv_freq.astype(np.float32).reshape(1, -1)
        layer, kind = name.rsplit(".", 1)
        if self.quant == "fp32" or "norm" in layer or kind == "bias":
            return self.checkpoint.tensor(self._source(name)).astype(np.float32, copy=False)
        values, scale = self._quantized(layer)
        if layer == "embed_tokens":
            return values if kind == "weight" else scale.reshape(-1, 1)
        if kind == "scale":
            return scale
        return tiles.pack(values) if tiles.tileable(*values.shape) else values

    def _source(self, name: str) -> str:
        """The canonical Hugging Face name."""
        if name == "lm_head.weight":
            return "model.embed_tokens.weight" if self.checkpoint.config.tied_head else name
        return f"model.{name}"

    def _quantized(self, layer: str):
        if self._last is None or self._last[0] != layer:
            self._last = None
            weight = self.checkpoint.tensor(self._source(f"{layer}.weight"))
            values = np.empty(weight.shape, np.int8)
            scale = np.empty(weight.shape[0], np.float32)
            error = 0.0
            step = max(1, _CHUNK_VALUES // weight.shape[1])
            for start in range(0, weight.shape[0], step):
                rows = slice(start, start + step)
                part = weight[rows].astype(np.float32, copy=False)
                values[rows], scale[rows] = quantize_rows(part)
                error = max(error, largest_error(part, values[rows], scale[rows]))
            self.errors[f"{layer}.weight"] = error
            self._last = (layer, values, scale)
        return self._last[1:]


class DygraphTensors:
    """The same tensors, taken from a dygraph decoder."""

    def __init__(self, decoder, errors: dict[str, float]):
        self.errors = errors
        self._parameters = dict(decoder.named_parameters())

    def array(self, name: str) -> np.ndarray:
        return self._parameters[name].numpy()


def build_decoder(tensors: CheckpointTensors):
    """The dygraph decoder of `tensors.quant` with all its weights: it runs and can be evaluated."""
    from .decoder import Decoder

    decoder = Decoder(tensors.checkpoint.config, tensors.quant)
    for name, parameter in decoder.named_parameters():
        parameter.set_value(tensors.array(name))
    decoder.eval()
    return decoder
