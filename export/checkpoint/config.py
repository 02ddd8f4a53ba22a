"""The shape of a decoder: what every checkpoint source is reduced to, and the tensors that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

import numpy as np

ARCHITECTURES = ("llama", "qwen2")


@dataclass(frozen=True)
class DecoderConfig:
    """A Qwen2 or Llama decoder. `rope_inv_freq` is float32 [head_dim / 2], rope scaling included."""

    architecture: str
    n_layers: int
    hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Optional[dict]
    rope_inv_freq: np.ndarray = field(repr=False, compare=False)
    qkv_bias: bool
    tied_head: bool
    max_position_embeddings: int
    name: str


def tensor_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Canonical Hugging Face name → shape of every tensor of the model, in the order of the forward pass."""
    hidden, ffn = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for i in range(config.n_layers):
        layer = f"model.layers.{i}."
        shapes[layer + "input_layernorm.weight"] = (hidden,)
        for proj, size in (("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size)):
            shapes[f"{layer}self_attn.{proj}.weight"] = (size, hidden)
            if config.qkv_bias:
                shapes[f"{layer}self_attn.{proj}.bias"] = (size,)
        shapes[layer + "self_attn.o_proj.weight"] = (hidden, q_size)
        shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
        shapes[layer + "mlp.gate_proj.weight"] = (ffn, hidden)
        shapes[layer + "mlp.up_proj.weight"] = (ffn, hidden)
        shapes[layer + "mlp.down_proj.weight"] = (hidden, ffn)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied_head:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes
