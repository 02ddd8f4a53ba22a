"""Inverse frequencies of the rotary embedding, with the scalings that are a change of frequency only."""

from __future__ import annotations

import math
from typing import Optional

import numpy as np

from lite_runtime.errors import FileFormatError, UnsupportedError


def inverse_frequencies(head_dim: int, theta: float, scaling: Optional[dict], where: str) -> np.ndarray:
    """Float32 [head_dim / 2], radians per position. `scaling` is spelled as in a Hugging Face config."""
    inv_freq = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    kind = scaling_kind(scaling)
    if kind == "linear":
        inv_freq = inv_freq / _number(scaling, "factor", where)
    elif kind == "llama3":
        inv_freq = inv_freq / llama3_factors(inv_freq, scaling, where)
    elif kind != "none":
        raise UnsupportedError(
            f"{where}: rope scaling '{kind}' is not supported; expected none, linear or llama3"
        )
    if not inv_freq.max() < 3e38:
        raise FileFormatError(f"{where}: rope_theta {theta} gives frequencies that float32 does not hold")
    return inv_freq.astype(np.float32)


def scaling_kind(scaling: Optional[dict]) -> str:
    """Name of the scaling; Hugging Face configs say it as `rope_type` (now) or `type` (before)."""
    if not scaling:
        return "none"
    kind = scaling.get("rope_type", scaling.get("type", "none"))
    return "none" if kind in (None, "default") else str(kind)


def llama3_factors(inv_freq: np.ndarray, scaling: dict, where: str) -> np.ndarray:
    """What Llama 3.1 divides each frequency by: 1 for short waves, `factor` for long ones, a ramp between.

    The ramp is linear in the number of turns that a wave makes over the original context.
    """
    factor, low, high, original = (
        _number(scaling, key, where)
        for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    if high <= low:
        raise FileFormatError(f"{where}: rope scaling has high_freq_factor {high} ≤ low_freq_factor {low}")
    turns = original * inv_freq / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - keep) / factor + keep)


def _number(scaling: dict, key: str, where: str) -> float:
    value = scaling.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 3e38:
        raise FileFormatError(
            f"{where}: rope scaling '{scaling_kind(scaling)}' needs a positive {key}, found {value!r}"
        )
    return float(value)
