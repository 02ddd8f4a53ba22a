"""The decoder as a Paddle dygraph model, in fp32 or INT8, written in ops that Paddle Lite executes.

One class serves Qwen2 and Llama; the configuration switches the QKV bias. Paddle Lite has no rms_norm,
swiglu, rotary or attention op, and its x86 matmul does not broadcast batches, so each is spelled out.

Shapes: T new tokens, S = P + T keys (P cached), H query heads, KV key/value heads, G = H / KV, D head size.
"""

from __future__ import annotations

import paddle
from paddle import nn
from paddle.base.layer_helper import LayerHelper

from edge_kit.nb.tiles import tileable


def _parameter(layer: nn.Layer, shape: list[int], dtype: str = "float32"):
    attr = paddle.ParamAttr(initializer=nn.initializer.Constant(0), trainable=False)
    return layer.create_parameter(shape, attr=attr, dtype=dtype)


class FloatLinear(nn.Layer):
    """y = x W^T + b with W fp32 [N, K]."""

    def __init__(self, k: int, n: int, bias: bool):
        super().__init__()
        self.weight = _parameter(self, [n, k])
        self.bias = _parameter(self, [n]) if bias else None

    def forward(self, x):
        y = paddle.matmul(x, self.weight, transpose_y=True)
        return y if self.bias is None else y + self.bias


class Int8Linear(nn.Layer):
    """y = x W^T * scale + b with W int8 and one scale per output.

    W is stored in tiles [N/16, K/4, 16, 4], the order in which the native kernels read it, where N and K
    divide, else as [N, K].
    """

    def __init__(self, k: int, n: int, bias: bool):
        super().__init__()
        self.k, self.n = k, n
        self.tiled = tileable(n, k)
        shape = [n // 16, k // 4, 16, 4] if self.tiled else [n, k]
        self.weight = _parameter(self, shape, "int8")
        self.scale = _parameter(self, [n])
        self.bias = _parameter(self, [n]) if bias else None

    def forward(self, x):
        weight = self.weight.astype("float32")
        if self.tiled:
            weight = paddle.reshape(paddle.transpose(weight, [0, 2, 1, 3]), [self.n, self.k])
        y = paddle.matmul(x, weight, transpose_y=True) * self.scale
        return y if self.bias is None else y + self.bias


class FloatEmbedding(nn.Layer):
    """Rows of an fp32 table [N, K]."""

    def __init__(self, n: int, k: int):
        super().__init__()
        self.weight = _parameter(self, [n, k])

    def forward(self, ids):
        return gather_rows(self.weight, ids)


def gather_rows(table, ids):
    """table[ids], for int8 too: `paddle.gather` refuses to trace int8 though its kernel takes it."""
    if paddle.in_dynamic_mode():
        return paddle.gather(table, ids, axis=0)
    helper = LayerHelper("gather")
    rows = helper.create_variable_for_type_inference(table.dtype)
    helper.append_op(
        type="gather", inputs={"X": table, "Index": ids}, outputs={"Out": rows}, attrs={"axis": 0}
    )
    return rows


class Int8Embedding(nn.Layer):
    """Rows of an int8 table [N, K] times one scale per row [N, 1]."""

    def __init__(self, n: int, k: int):
        super().__init__()
        self.weight = _parameter(self, [n, k], "int8")
        self.scale = _parameter(self, [n, 1])

    def forward(self, ids):
        return gather_rows(self.weight, ids).astype("float32") * gather_rows(self.scale, ids)


class RMSNorm(nn.Layer):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis [K]."""

    def __init__(self, k: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = _parameter(self, [k])

    def forward(self, x):
        mean_square = paddle.mean(x * x, axis=-1, keepdim=True)
        return x * paddle.rsqrt(mean_square + self.eps) * self.weight


class RotaryTable(nn.Layer):
    """cos and sin [T, D] of position times inverse frequency, computed in the program."""

    def __init__(self, dim: int):
        super().__init__()
        self.inv_freq = _parameter(self, [1, dim // 2])

    def forward(self, positions):
        angle = paddle.matmul(paddle.reshape(paddle.cast(positions, "float32"), [-1, 1]), self.inv_freq)
        angle = paddle.concat([angle, angle], axis=-1)
        return paddle.cos(angle), paddle.sin(angle)


def apply_rotary(x, cos, sin):
    """x [heads, T, D] * cos + rotate_half(x) * sin, rotate_half(x) = concat(-x[D/2:], x[:D/2])."""
    dim = x.shape[-1]
    first = paddle.slice(x, [2], [0], [dim // 2])
    second = paddle.slice(x, [2], [dim // 2], [dim])
    return x * cos + paddle.concat([-second, first], axis=-1) * sin


class Attention(nn.Layer):
    """Grouped-query attention: x [T, hidden] and past [KV, P, D] -> [T, hidden], key, value [KV, S, D]."""

    def __init__(self, config, linear):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.dim = config.n_heads, config.n_kv_heads, config.head_dim
        q_size, kv_size = self.n_heads * self.dim, self.n_kv_heads * self.dim
        self.q_proj = linear(config.hidden_size, q_size, config.qkv_bias)
        self.k_proj = linear(config.hidden_size, kv_size, config.qkv_bias)
        self.v_proj = linear(config.hidden_size, kv_size, config.qkv_bias)
        self.o_proj = linear(q_size, config.hidden_size, False)

    def _heads(self, x, n_heads):
        """[T, heads * D] -> [heads, T, D]"""
        return paddle.transpose(paddle.reshape(x, [-1, n_heads, self.dim]), [1, 0, 2])

    def forward(self, x, cos, sin, mask, past_key, past_value):
        query = apply_rotary(self._heads(self.q_proj(x), self.n_heads), cos, sin)
        key = apply_rotary(self._heads(self.k_proj(x), self.n_kv_heads), cos, sin)
        value = self._heads(self.v_proj(x), self.n_kv_heads)
        key = paddle.concat([past_key, key], axis=1)
        value = paddle.concat([past_value, value], axis=1)

        # The G query heads of a key/value head become rows of one matrix: [KV, G * T, D].
        query = paddle.reshape(query, [self.n_kv_heads, -1, self.dim])
        scores = paddle.matmul(query, key, transpose_y=True) * self.dim**-0.5
        scores = paddle.reshape(scores, [self.n_heads, -1, 0]) + mask  # [H, T, S]; 0 keeps S
        probabilities = paddle.reshape(nn.functional.softmax(scores, axis=-1), [self.n_kv_heads, -1, 0])
        context = paddle.reshape(paddle.matmul(probabilities, value), [self.n_heads, -1, self.dim])
        context = paddle.reshape(paddle.transpose(context, [1, 0, 2]), [-1, self.n_heads * self.dim])
        return self.o_proj(context), key, value


class MLP(nn.Layer):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config, linear):
        super().__init__()
        self.gate_proj = linear(config.hidden_size, config.intermediate_size, False)
        self.up_proj = linear(config.hidden_size, config.intermediate_size, False)
        self.down_proj = linear(config.intermediate_size, config.hidden_size, False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Layer):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, config, linear):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, linear)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config, linear)

    def forward(self, x, cos, sin, mask, past_key, past_value):
        attention, key, value = self.self_attn(self.input_layernorm(x), cos, sin, mask, past_key, past_value)
        x = x + attention
        return x + self.mlp(self.post_attention_layernorm(x)), key, value


class Decoder(nn.Layer):
    """The whole network.

    `quant` is "fp32" or "int8" (channel-wise, embedding and head too). All parameters start as zeros;
    `tensors.build_decoder` fills them. Their names here ("layers.0.mlp.up_proj.scale") are those in the file.
    """

    def __init__(self, config, quant: str):
        super().__init__()
        linear, embedding = (Int8Linear, Int8Embedding) if quant == "int8" else (FloatLinear, FloatEmbedding)
        self.config = config
        self.embed_tokens = embedding(config.vocab_size, config.hidden_size)
        self.rotary = RotaryTable(config.head_dim)
        self.layers = nn.LayerList([DecoderLayer(config, linear) for _ in range(config.n_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = linear(config.hidden_size, config.vocab_size, False)

    def forward(self, input_ids, positions, attention_mask, past):
        """One forward over T new tokens of one sequence.

        input_ids int64 [T]; positions int64 [T]; attention_mask fp32 [T, S], 0 where a key is visible and
        a large negative number elsewhere; past: key, value of each layer in turn, fp32 [KV, P, D].
        Returns logits fp32 [T, vocabulary] and the new cache, in the order of `past`, [KV, S, D].
        """
        x = self.embed_tokens(input_ids)
        cos, sin = self.rotary(positions)
        present = []
        for i, layer in enumerate(self.layers):
            x, key, value = layer(x, cos, sin, attention_mask, past[2 * i], past[2 * i + 1])
            present += [key, value]
        return self.lm_head(self.norm(x)), present
