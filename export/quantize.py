"""Channel-wise abs-max INT8."""

from __future__ import annotations

import numpy as np


def quantize_rows(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """fp32 [N, K] → int8 [N, K] within ±127 and fp32 scales [N], weight ≈ int8 * scale.

    scale = max|row| / 127, values round half to even; a row of zeros has scale 0.
    """
    # max and min make no copy of the matrix, np.abs would.
    scale = np.maximum(weight.max(axis=1), -weight.min(axis=1)) / np.float32(127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    scaled = weight * inverse[:, None]
    np.rint(scaled, out=scaled)
    np.clip(scaled, -127, 127, out=scaled)
    return scaled.astype(np.int8), scale


def largest_error(weight: np.ndarray, values: np.ndarray, scale: np.ndarray) -> float:
    """max |weight - values * scale| as a fraction of max |weight|."""
    largest = max(float(weight.max()), -float(weight.min()))
    if largest == 0:
        return 0.0
    difference = values * scale[:, None]
    np.subtract(weight, difference, out=difference)
    return max(float(difference.max()), -float(difference.min())) / largest
