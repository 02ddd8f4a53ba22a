"""Which kernel stock Paddle Lite runs an op with, per target, as paddle_lite_opt 2.13-rc picks it.

A pick is "op/alias/target/precision/layout". Target: 1 host, 2 x86, 4 arm. Precision: 1 float, 4 any.
Layout: 1 NCHW, 2 any. Opt's programs for x86 and for arm differ in more than the target number: some arm
kernels take any precision, a few ops that have an arm kernel run on the host on x86, and arm fuses an fp32
matmul_v2 and elementwise_add into fc.
"""

from __future__ import annotations

import re

from edge_kit.nb.format import Target
from lite_runtime.errors import UnsupportedError

_HOST_ANY = {"x86": "1/4/2", "arm": "1/4/2"}
_HOST_ANY_NCHW = {"x86": "1/4/1", "arm": "1/4/1"}
_HOST = {"x86": "1/1/1", "arm": "1/1/1"}
_NATIVE = {"x86": "2/1/1", "arm": "4/1/1"}
_NATIVE_ANY = {"x86": "2/1/1", "arm": "4/4/1"}
_ARM_ONLY = {"x86": "1/1/1", "arm": "4/1/1"}

# Op -> target/precision/layout per target. The alias is "def" unless _ALIASES says otherwise.
_PLACES = {
    **dict.fromkeys(("feed", "fetch", "reshape2"), _HOST_ANY),
    "cast": _HOST_ANY_NCHW,
    **dict.fromkeys(("cos", "gather", "sin", "split"), _HOST),
    **dict.fromkeys(("abs", "exp", "silu"), _ARM_ONLY),
    **dict.fromkeys(("concat", "lookup_table_v2", "transpose2"), _NATIVE_ANY),
    **dict.fromkeys(("elementwise_add", "elementwise_div", "elementwise_mul", "elementwise_sub"), _NATIVE),
    **dict.fromkeys(("fc", "layer_norm", "matmul_v2", "reduce_mean", "rsqrt", "scale", "sigmoid"), _NATIVE),
    **dict.fromkeys(("gelu", "pow", "relu", "slice", "softmax", "sqrt", "square", "tanh"), _NATIVE),
}
_PICK = re.compile(r"([^/]+)/([^/]+)/(\d)/\d/\d", re.ASCII)
_ALIASES = {"gather": "int64int64"}  # by the types of index and axis


def has_kernel(op_type: str) -> bool:
    """Whether this table knows a kernel for the op (the same set on both targets)."""
    return op_type in _PLACES


def pick(op_type: str, target: str) -> str:
    """The pick that opt writes for an fp32 op of the decoder; `target` is "x86" or "arm"."""
    if op_type not in _PLACES:
        raise UnsupportedError(f"op {op_type}: no kernel of Paddle Lite is known for it on {target}")
    return f"{op_type}/{_ALIASES.get(op_type, 'def')}/{_PLACES[op_type][target]}"


def to_x86(kernel: str) -> str:
    """The x86 pick in place of an arm one; host picks stay. The length never changes."""
    parts = _PICK.fullmatch(kernel)
    if not parts:
        raise UnsupportedError(f"kernel pick {kernel!r}: expected op/alias/target/precision/layout")
    op_type, alias, target = parts.groups()
    if target != str(int(Target.ARM)):
        return kernel
    if op_type not in _PLACES:
        raise UnsupportedError(f"op {op_type} ({kernel}): no x86 kernel of Paddle Lite is known in its place")
    return f"{op_type}/{alias}/{_PLACES[op_type]['x86']}"
