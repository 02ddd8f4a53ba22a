"""The decoder in plain NumPy, reading one tensor at a time: small enough to be checked by eye."""

from __future__ import annotations

import numpy as np


def forward(checkpoint, ids, dtype=np.float64) -> np.ndarray:
    """Logits [len(ids), vocab] of a Checkpoint for one sequence from position 0."""
    config = checkpoint.config

    def weight(name):
        return checkpoint.tensor(name).astype(dtype)

    def linear(x, name):
        y = x @ weight(name + ".weight").T
        return y + weight(name + ".bias") if name + ".bias" in checkpoint.tensor_names else y

    def rms_norm(x, name):
        scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + config.rms_norm_eps)
        return x * scale * weight(name + ".weight")

    angles = np.arange(len(ids))[:, None] * config.rope_inv_freq.astype(dtype)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def rope(x):  # [T, heads, dim], first half paired with second
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    x = weight("model.embed_tokens.weight")[np.asarray(ids)]
    future = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
    group = config.n_heads // config.n_kv_heads
    for i in range(config.n_layers):
        layer = f"model.layers.{i}."
        h = rms_norm(x, layer + "input_layernorm")
        q = rope(linear(h, layer + "self_attn.q_proj").reshape(len(ids), config.n_heads, -1))
        k = rope(linear(h, layer + "self_attn.k_proj").reshape(len(ids), config.n_kv_heads, -1))
        v = linear(h, layer + "self_attn.v_proj").reshape(len(ids), config.n_kv_heads, -1)
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(config.head_dim) + future
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        attended = np.einsum("hts,shd->thd", weights, v).reshape(len(ids), -1)
        x = x + linear(attended, layer + "self_attn.o_proj")
        h = rms_norm(x, layer + "post_attention_layernorm")
        gate = linear(h, layer + "mlp.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, layer + "mlp.up_proj"), layer + "mlp.down_proj")
    x = rms_norm(x, "model.norm")
    return x @ weight("model.embed_tokens.weight" if config.tied_head else "lm_head.weight").T
