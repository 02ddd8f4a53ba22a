"""The order in which int8 weights lie in the file: tiles of 16 outputs by 4 inputs, [N/16, K/4, 16, 4].

A kernel whose vector lanes are 16 outputs reads 64 bytes after 64 bytes, each lane with 4 neighbours along K
for one dot-product instruction. In stock ops: transpose2(0, 2, 1, 3), then reshape2([N, K]).
"""

from __future__ import annotations

import numpy as np

from lite_runtime.errors import UsageError

TILE_OUTPUTS = 16
TILE_INPUTS = 4


def tileable(n: int, k: int) -> bool:
    """Whether a weight of n outputs and k inputs divides into tiles."""
    return n > 0 and k > 0 and n % TILE_OUTPUTS == 0 and k % TILE_INPUTS == 0


def pack(weight: np.ndarray) -> np.ndarray:
    """[N, K] -> [N/16, K/4, 16, 4], contiguous."""
    if weight.ndim != 2 or not tileable(*weight.shape):
        raise UsageError(f"a weight of shape {list(weight.shape)} does not divide into tiles of 16 by 4")
    n, k = weight.shape
    tiles = weight.reshape(n // TILE_OUTPUTS, TILE_OUTPUTS, k // TILE_INPUTS, TILE_INPUTS)
    return np.ascontiguousarray(tiles.transpose(0, 2, 1, 3))


def unpack(tiles: np.ndarray) -> np.ndarray:
    """[N/16, K/4, 16, 4] -> [N, K], contiguous."""
    if tiles.ndim != 4 or tiles.shape[2:] != (TILE_OUTPUTS, TILE_INPUTS):
        raise UsageError(f"an array of shape {list(tiles.shape)} does not hold tiles of 16 by 4")
    n, k = tiles.shape[0] * TILE_OUTPUTS, tiles.shape[1] * TILE_INPUTS
    return np.ascontiguousarray(tiles.transpose(0, 2, 1, 3)).reshape(n, k)
