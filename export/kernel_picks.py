"""Which kernel of Paddle Lite runs each op, as `paddle_lite_opt` 2.13rc0 picks them.

A pick is written into the op as "op/alias/target/precision/layout", the numbers being those of Paddle
Lite's lite/api/paddle_place.h: target 1 host, 2 x86, 4 arm; precision 1 float, 4 any; layout 1 NCHW, 2 any.
"""

from __future__ import annotations

_HOST, _FLOAT, _ANY, _NCHW, _ANY_LAYOUT = 1, 1, 4, 1, 2

PLACES = {"x86": 2, "arm": 4}

# Op → (alias, target, precision, layout). A target of None is the place itself.
_COMMON = {
    "feed": ("def", _HOST, _ANY, _ANY_LAYOUT),
    "fetch": ("def", _HOST, _ANY, _ANY_LAYOUT),
    "reshape2": ("def", _HOST, _ANY, _ANY_LAYOUT),
    "cast": ("def", _HOST, _ANY, _NCHW),
    "gather": ("int64int64", _HOST, _FLOAT, _NCHW),  # alias: types of index and axis
    "cos": ("def", _HOST, _FLOAT, _NCHW),
    "sin": ("def", _HOST, _FLOAT, _NCHW),
    "elementwise_add": ("def", None, _FLOAT, _NCHW),
    "elementwise_mul": ("def", None, _FLOAT, _NCHW),
    "matmul_v2": ("def", None, _FLOAT, _NCHW),
    "reduce_mean": ("def", None, _FLOAT, _NCHW),
    "rsqrt": ("def", None, _FLOAT, _NCHW),
    "scale": ("def", None, _FLOAT, _NCHW),
    "slice": ("def", None, _FLOAT, _NCHW),
    "softmax": ("def", None, _FLOAT, _NCHW),
}
_BY_PLACE = {
    "x86": {
        "concat": ("def", None, _FLOAT, _NCHW),
        "silu": ("def", _HOST, _FLOAT, _NCHW),
        "transpose2": ("def", None, _FLOAT, _NCHW),
    },
    "arm": {
        "concat": ("def", None, _ANY, _NCHW),
        "silu": ("def", None, _FLOAT, _NCHW),
        "transpose2": ("def", None, _ANY, _NCHW),
    },
}


def kernel_pick(op_type: str, place: str) -> str | None:
    """The pick for an op on "x86" or "arm"; None where the kit knows of no kernel."""
    found = _COMMON.get(op_type) or _BY_PLACE[place].get(op_type)
    if found is None:
        return None
    alias, target, precision, layout = found
    return f"{op_type}/{alias}/{PLACES[place] if target is None else target}/{precision}/{layout}"
