"""The native runtime's INT8-mode arithmetic in NumPy, bit for bit.

lite_runtime/src/kernels/kernels.h fixes the order of every fp32 operation, so all kernel paths and this file
give equal floats. That matters: activations are rounded to int8, and one bit of difference before a rounding
grows layer by layer into other logits.

fp32 unless a docstring says otherwise. R rows, K inputs, N outputs, S keys, D head size.
"""

from __future__ import annotations

import numpy as np

GROUP = 64  # activations per quantization group: kGroup
LANES = 16  # partial sums of a reduction
CACHE_BLOCK = 64  # keys per partial softmax: kCacheBlock
TINY = np.float32(2.0**-120)  # below it 127 / max would overflow, and the group counts as zero

_LOG2_E = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693145752), np.float32(1.42860682e-6)
_TAYLOR = [np.float32(1) / np.float32(n) for n in (5040, 720, 120, 24, 6, 2, 1, 1)]


def fma(a, b, c):
    """a * b + c with one rounding. fp64 holds the product exactly; its own rounding of the sum, 29 bits
    finer, moves the result in about one case of 2^29."""
    return (np.multiply(a, b, dtype=np.float64) + c).astype(np.float32)


def exp(x):
    """e^x: x = n ln2 + r, the Taylor series of e^r, times 2^n; 0 below -87.7, infinity above 88.3."""
    x = np.clip(x, np.float32(-88), np.float32(89))
    n = np.rint(x * _LOG2_E)
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    total = np.broadcast_to(_TAYLOR[0], r.shape)
    for term in _TAYLOR[1:]:
        total = fma(total, r, term)
    power = np.where(n <= -127, np.float32(0), np.ldexp(np.float32(1), np.minimum(n, 127).astype(np.int32)))
    return total * np.where(n >= 128, np.float32(np.inf), power)


def lane_sum(x):
    """x [..., K] -> [...]: sixteen running sums, then lanes i and i + 8, 4, 2, 1."""
    padding = -x.shape[-1] % LANES
    x = np.concatenate([x, np.zeros(x.shape[:-1] + (padding,), np.float32)], axis=-1) if padding else x
    x = x.reshape(x.shape[:-1] + (-1, LANES))
    lanes = np.zeros(x.shape[:-2] + (LANES,), np.float32)
    for i in range(x.shape[-2]):
        lanes = lanes + x[..., i, :]
    half = LANES // 2
    while half:
        lanes = lanes[..., :half] + lanes[..., half : 2 * half]
        half //= 2
    return lanes[..., 0]


def silu(x):
    return x / (np.float32(1) + exp(-x))


def quantize(x):
    """Activations x [R, K] in groups of 64 along K, the last one padded with zeros.

    Returns (q, scale): q [R, groups, 64], whole numbers within +-127 held as fp32, and scale [R, groups] =
    max|x| / 127. q = round-half-even(x * (127 / max|x|)), each step in fp32. A group of zeros gives scale 0
    and zeros; one with a NaN or an infinity gives scale NaN and zeros.
    """
    groups = -(-x.shape[1] // GROUP)
    padded = np.zeros((len(x), groups * GROUP), np.float32)
    padded[:, : x.shape[1]] = x
    padded = padded.reshape(len(x), groups, GROUP)
    largest = np.abs(padded).max(axis=2)
    finite, regular = np.isfinite(largest), np.isfinite(largest) & (largest >= TINY)
    inverse = np.float32(127) / np.where(regular, largest, np.float32(1))
    q = np.rint(np.where(regular[..., None], padded, np.float32(0)) * inverse[..., None])
    scales = np.where(regular, largest / np.float32(127), np.float32(0))
    return q, np.where(finite, scales, np.float32(np.nan))


def int8_matmul(q, scales, weight):
    """sum over groups, in order, of scale * (the group's integer dot product) -> [R, N].

    q and scales from `quantize`, weight [N, K] whole numbers as fp32. A group's dot product is at most
    GROUP * 127 * 127 < 2^24, so fp32 holds every partial sum of it exactly, in whatever order BLAS adds.
    """
    n, k = weight.shape
    total = np.zeros((len(q), n), np.float32)
    for group in range(q.shape[1]):
        begin, end = group * GROUP, min((group + 1) * GROUP, k)
        total = fma(q[:, group, : end - begin] @ weight[:, begin:end].T, scales[:, group : group + 1], total)
    return total


def int8_blocks(x, axis: int):
    """Keys or values x [..., S, D] as later blocks read them from an int8 cache.

    Each full block of 64 tokens is rounded to int8 and multiplied by its scale, max|x| / 127 over `axis`: -2,
    one per channel, for keys; -1, one per token, for values. Zeros give scale 0, a NaN or an infinity NaN.
    What is behind the last full block stays as it is.
    """
    n_blocks = x.shape[-2] // CACHE_BLOCK
    end = n_blocks * CACHE_BLOCK
    blocks = x[..., :end, :].reshape(x.shape[:-2] + (n_blocks, CACHE_BLOCK, x.shape[-1]))
    largest = np.abs(blocks).max(axis=axis, keepdims=True)
    finite, regular = np.isfinite(largest), np.isfinite(largest) & (largest > 0)
    inverse = np.float32(127) / np.where(regular, largest, np.float32(1))
    q = np.rint(np.where(regular, blocks, np.float32(0)) * inverse)
    scale = np.where(regular, largest / np.float32(127), np.where(finite, np.float32(0), np.float32(np.nan)))
    read = (q * scale).reshape(x.shape[:-2] + (end, x.shape[-1]))
    return np.concatenate([read, x[..., end:, :]], axis=-2)


def scores(query, key):
    """query [..., R, D], key [..., S, D] -> their products [..., R, S], summed along D in order."""
    total = np.zeros(query.shape[:-1] + key.shape[-2:-1], np.float32)
    for d in range(query.shape[-1]):
        total = fma(query[..., d, None], key[..., None, :, d], total)
    return total


def int8_scores(query, key, own):
    """`scores` over an int8 cache: own [R] is the first token of each row's own block, which stays fp16."""
    earlier = np.arange(key.shape[-2]) < own[:, None]
    return np.where(earlier, scores(query, int8_blocks(key, -2)), scores(query, key))


def weighted(p, value):
    """p [..., R, S] times value [..., S, D] -> [..., R, D], summed along S in order."""
    total = np.zeros(p.shape[:-1] + value.shape[-1:], np.float32)
    for j in range(p.shape[-1]):
        total = fma(p[..., j, None], value[..., None, j, :], total)
    return total


def attend(masked_scores, value, own=None):
    """softmax(masked_scores [..., R, S]) times value [..., S, D] -> [..., R, D].

    Each block of 64 keys gives a partial (max, sum, weighted values); partials are folded in order. With an
    int8 cache, own [R] is the first token of each row's own block, and earlier blocks are read in int8.
    """
    quantized = None if own is None else int8_blocks(value, -1)
    largest = total = out = None
    for begin in range(0, masked_scores.shape[-1], CACHE_BLOCK):
        block = masked_scores[..., begin : begin + CACHE_BLOCK]
        block_max = block.max(axis=-1)
        p = exp(block - block_max[..., None])
        block_total = lane_sum(p)
        tokens = slice(begin, begin + CACHE_BLOCK)
        partial = weighted(p, value[..., tokens, :])
        if own is not None:
            partial = np.where((begin < own)[:, None], weighted(p, quantized[..., tokens, :]), partial)
        if begin == 0:
            largest, total, out = block_max, block_total, partial
            continue
        new_max = np.maximum(largest, block_max)
        keep, take = exp(largest - new_max), exp(block_max - new_max)
        out = fma(partial, take[..., None], out * keep[..., None])
        total = total * keep + block_total * take
        largest = new_max
    return out / total[..., None]
