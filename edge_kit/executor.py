"""The program of a `.nb` file, run op by op in NumPy: slow, readable, and the judge of every kernel.

Two modes:

    exact   what the ops say, in fp32
    int8    what the native runtime computes, bit for bit. As exact, except that
              * a matmul with an int8 weight quantizes its activations;
              * keys and values are rounded to fp16 on their way into the cache;
              * sums, exponentials and softmax follow the runtime's order (`edge_kit.arithmetic`);
              * with kv_dtype int8, a row sees the blocks of 64 tokens before its own in int8.

The ops are followed in program order and by position: after opt's memory reuse one name stands for several
values in turn. Stock Paddle Lite is in turn the judge of this file (`edge_kit.stock`).

Shapes: T new tokens, S = P + T keys (P cached), KV key/value heads, D head size, K inputs, N outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edge_kit import arithmetic
from edge_kit.interface import Interface, causal_mask, checked_ids
from edge_kit.nb.format import ELEMENTS, VarType
from edge_kit.nb.reader import NbFile
from lite_runtime.errors import FileFormatError, UnsupportedError, UsageError
from lite_runtime.model import KV_DTYPES

MODES = ("exact", "int8")
WEIGHT, CACHE, SCORES = "weight", "cache", "scores"


class Tensor(NamedTuple):
    """A value on its way through the program.

    `origin`: WEIGHT for an int8 parameter behind its cast, whose data is still int8 (a matmul casts it in
    blocks, which saves memory); CACHE for keys or values of earlier tokens; SCORES for masked scores that, in
    int8 mode, wait for the matmul with the values to turn them into probabilities; else "".
    A `constant` depends on parameters alone, so it is computed once.
    """

    data: np.ndarray
    origin: str = ""
    constant: bool = False


def unsupported(op, problem: str) -> UnsupportedError:
    outputs = ", ".join(name for names in op.outputs.values() for name in names[:1])
    return UnsupportedError(f"op {op.type} (which writes {outputs}): {problem}")


# --- gather ---


def gather(op, table, index):
    """Rows of `table` [N, K] at `index` [T]."""
    if op.attr("axis", 0) != 0:
        raise unsupported(op, f"axis {op.attr('axis')}; the executor knows axis 0")
    return table[index]


# --- cast ---


def cast(op, x):
    return x.astype(ELEMENTS[VarType(op.attr("out_dtype"))][0])


# --- reshape2 ---


def reshape2(op, x):
    """A size of 0 keeps the input's size at that place, one of -1 takes what is left."""
    return x.reshape([x.shape[i] if size == 0 else size for i, size in enumerate(op.attr("shape"))])


# --- transpose2 ---


def transpose2(op, x):
    return x.transpose(op.attr("axis"))


# --- concat ---


def concat(op, *parts):
    return np.concatenate(parts, axis=op.attr("axis", 0))


# --- slice ---


def slice_(op, x):
    """x[starts:ends] along `axes`; Paddle counts and clips as Python does."""
    if op.attr("decrease_axis"):
        raise unsupported(op, f"decrease_axis {op.attr('decrease_axis')}; the executor keeps all axes")
    cut = [slice(None)] * x.ndim
    for axis, start, end in zip(op.attr("axes"), op.attr("starts"), op.attr("ends")):
        cut[axis] = slice(start, end)
    return x[tuple(cut)]


# --- elementwise_add ---


def _aligned(op, x, y):
    """y with its shape set against that of x from `axis` on; -1 aligns at the right, as NumPy does."""
    axis = op.attr("axis", -1)
    return y if axis == -1 else y.reshape(y.shape + (1,) * (x.ndim - axis - y.ndim))


def elementwise_add(op, x, y):
    return x + _aligned(op, x, y)


# --- elementwise_mul ---


def elementwise_mul(op, x, y):
    return x * _aligned(op, x, y)


# --- scale ---


def scale(op, x):
    factor, bias = np.float32(op.attr("scale", 1.0)), np.float32(op.attr("bias", 0.0))
    return x * factor + bias if op.attr("bias_after_scale", True) else (x + bias) * factor


# --- reduce_mean ---


def reduce_mean(op, x):
    """Summed in fp64, so that the judge adds no error of its own."""
    axes = None if op.attr("reduce_all") else tuple(op.attr("dim"))
    return np.mean(x, axis=axes, keepdims=op.attr("keep_dim", False), dtype=np.float64).astype(np.float32)


# --- rsqrt ---


def rsqrt(op, x):
    return np.float32(1) / np.sqrt(x)


# --- cos ---


def cos(op, x):
    """Rounded once, from fp64."""
    return np.cos(x.astype(np.float64)).astype(np.float32)


# --- sin ---


def sin(op, x):
    return np.sin(x.astype(np.float64)).astype(np.float32)


# --- silu ---


def silu(op, x):
    """x / (1 + exp(-x)); where exp overflows the quotient is 0, as it should be."""
    with np.errstate(over="ignore"):
        return x / (np.float32(1) + np.exp(-x))


# --- softmax ---


def softmax(op, x):
    axis = op.attr("axis", -1)
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


# --- matmul_v2 ---


def matmul_v2(op, x, y):
    x = np.swapaxes(x, -1, -2) if op.attr("trans_x") else x
    y = np.swapaxes(y, -1, -2) if op.attr("trans_y") else y
    return np.matmul(x, y)


def weight_matmul(op, x, weight, mode: str):
    """x [..., K] times a WEIGHT, int8 [N, K] with trans_y or [K, N] without -> [..., N]."""
    if op.attr("trans_x"):
        raise unsupported(op, "trans_x with an int8 weight")
    rows = x.reshape(-1, x.shape[-1])
    weight = weight if op.attr("trans_y") else weight.T
    n = len(weight)
    y = np.empty((len(rows), n), np.float32)
    # The fp64 sums of a block of outputs, [T, block], fit the L2 cache; a cast block takes 150 MB at most.
    block = min(max((1 << 17) // max(len(rows), 1), 64), 4096)
    quantized = arithmetic.quantize(rows) if mode == "int8" else None
    for begin in range(0, n, block):
        part = weight[begin : begin + block].astype(np.float32)
        y[:, begin : begin + block] = arithmetic.int8_matmul(*quantized, part) if quantized else rows @ part.T
    return y.reshape(x.shape[:-1] + (n,))


# --- the same in int8 mode ---


def runtime_reduce_mean(op, x):
    if op.attr("reduce_all") or op.attr("dim") not in ([-1], [x.ndim - 1]):
        raise unsupported(op, f"dim {op.attr('dim')}; the runtime takes the mean of the last axis only")
    mean = arithmetic.lane_sum(x) / np.float32(x.shape[-1])
    return mean[..., None] if op.attr("keep_dim", False) else mean


def runtime_silu(op, x):
    return arithmetic.silu(x)


def is_scores(op, x) -> bool:
    """Whether op multiplies queries x by keys."""
    return op.type == "matmul_v2" and op.attr("trans_y") and not op.attr("trans_x") and x.ndim == 3


def runtime_matmul_v2(op, x, y):
    """Queries times keys along D in order; anything else as in exact mode."""
    if is_scores(op, x):
        return arithmetic.scores(x, y)
    return matmul_v2(op, x, y)


# Op -> (function, the parameters it reads).
OPS = {
    "gather": (gather, ("X", "Index")),
    "cast": (cast, ("X",)),
    "reshape2": (reshape2, ("X",)),
    "transpose2": (transpose2, ("X",)),
    "concat": (concat, ("X",)),
    "slice": (slice_, ("Input",)),
    "elementwise_add": (elementwise_add, ("X", "Y")),
    "elementwise_mul": (elementwise_mul, ("X", "Y")),
    "scale": (scale, ("X",)),
    "reduce_mean": (reduce_mean, ("X",)),
    "rsqrt": (rsqrt, ("X",)),
    "cos": (cos, ("X",)),
    "sin": (sin, ("X",)),
    "silu": (silu, ("X",)),
    "softmax": (softmax, ("X",)),
    "matmul_v2": (matmul_v2, ("X", "Y")),
}

RUNTIME_OPS = {"reduce_mean": runtime_reduce_mean, "silu": runtime_silu, "matmul_v2": runtime_matmul_v2}


def read_names(op) -> list[str]:
    """The variables an op reads, in the order of its function's arguments."""
    return [name for parameter in OPS[op.type][1] for name in op.inputs.get(parameter, [])]


class Executor:
    """A `.nb` file (path or open NbFile) ready to run in `mode`; `kv_dtype` is that of int8 mode's cache.

    UnsupportedError if the program holds an op, or an input of an op, that the executor does not know.
    """

    def __init__(self, file, mode: str = "exact", kv_dtype: str = "f16"):
        if mode not in MODES:
            raise UsageError(f"mode {mode!r} is unknown; choose one of {', '.join(MODES)}")
        if kv_dtype not in KV_DTYPES:
            raise UsageError(f"kv_dtype {kv_dtype!r} is unknown; choose one of {', '.join(KV_DTYPES)}")
        self.mode = mode
        self._int8_cache = mode == "int8" and kv_dtype == "int8"
        self._own = None  # of an int8 cache: the first token of each new one's block, [T]
        self.file = file if isinstance(file, NbFile) else NbFile(file)
        self.ops = [op for op in self.file.program.ops if op.type not in ("feed", "fetch")]
        self._check_ops()
        self.interface = Interface(self.file)
        self._parameters = {
            name: Tensor(self.file.array(name), constant=True) for name in self.file.tensors
        }
        self._constants: dict[int, Tensor] = {}  # by the op's position
        last_read = {name: i for i, op in enumerate(self.ops) for name in read_names(op)}
        self._dead: list[list[str]] = [[] for _ in self.ops]  # by position: names not read after it
        for name in set(last_read).difference(self.interface.outputs):
            self._dead[last_read[name]].append(name)
        self._check_names()

    def _check_ops(self) -> None:
        for op in self.ops:
            if op.type not in OPS:
                raise unsupported(op, f"unknown to the executor, which knows {', '.join(sorted(OPS))}")
            parameters = OPS[op.type][1]
            extra = [name for name, arguments in op.inputs.items() if arguments and name not in parameters]
            if extra:
                raise unsupported(op, f"input {extra[0]}; the executor reads {', '.join(parameters)} only")

    def _check_names(self) -> None:
        """Every name is written before it is read."""
        known = set(self._parameters).union(self.interface.inputs)
        for op in self.ops:
            missing = [name for name in read_names(op) if name not in known]
            if missing:
                raise FileFormatError(
                    f"{self.file.path}: op {op.type} reads {missing[0]}, which is no parameter, no input and "
                    "not written by an op before it. Export the model again."
                )
            known.add(op.outputs["Out"][0])

    def session(self) -> Session:
        """A new, empty one."""
        return Session(self)

    def run(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """One pass over the program; `feeds` by input name, outputs by column."""
        values = dict(self._parameters)
        if self._int8_cache:
            self._own = feeds[self.interface.inputs[1]] // arithmetic.CACHE_BLOCK * arithmetic.CACHE_BLOCK
        for name, data in feeds.items():
            values[name] = Tensor(data, CACHE if name in self.interface.past else "")
        for position, op in enumerate(self.ops):
            result = self._constants.get(position)
            if result is None:
                result = self._apply(op, [values[name] for name in read_names(op)])
                if result.constant:
                    self._constants[position] = result
            # XShape, the second output of a reshape or a transpose, is for training and never read.
            for name in self._dead[position]:
                del values[name]
            values[op.outputs["Out"][0]] = result
        return [values[name].data for name in self.interface.outputs]

    def _apply(self, op, inputs: list[Tensor]) -> Tensor:
        constant = all(tensor.constant for tensor in inputs)
        first, last = inputs[0], inputs[-1]
        if op.type == "cast" and first.constant and first.data.dtype == np.int8:
            return Tensor(first.data, WEIGHT, constant)
        if op.type in ("transpose2", "reshape2") and first.origin == WEIGHT:
            return Tensor(OPS[op.type][0](op, first.data), WEIGHT, constant)
        if op.type == "matmul_v2" and last.origin == WEIGHT:
            return Tensor(weight_matmul(op, first.data, last.data, self.mode), "", constant)
        if self.mode == "int8" and op.type == "softmax":
            return Tensor(first.data, SCORES)
        if op.type == "reshape2" and first.origin == SCORES:
            return Tensor(reshape2(op, first.data), SCORES)
        if op.type == "matmul_v2" and first.origin == SCORES:
            return Tensor(arithmetic.attend(first.data, last.data, self._own_of(first.data)))
        if self._int8_cache and is_scores(op, first.data):
            return Tensor(arithmetic.int8_scores(first.data, last.data, self._own_of(first.data)))
        arrays = [t.data.astype(np.float32) if t.origin == WEIGHT else t.data for t in inputs]
        function = RUNTIME_OPS.get(op.type) if self.mode == "int8" else None
        result = (function or OPS[op.type][0])(op, *arrays)
        if op.type == "concat" and first.origin == CACHE and self.mode == "int8":
            result = result.astype(np.float16).astype(np.float32)
        return Tensor(result, "", constant)

    def _own_of(self, rows):
        """Of rows [KV, G * T, any] the first token of each one's block, [G * T]; None for an fp16 cache."""
        return np.tile(self._own, rows.shape[-2] // len(self._own)) if self._int8_cache else None


class Session:
    """The cache of one sequence."""

    def __init__(self, executor: Executor):
        self._executor = executor
        self._cache = [np.zeros((kv, 0, dim), np.float32) for kv, dim in executor.interface.cache_shapes]
        self.length = 0

    def forward(self, ids) -> np.ndarray:
        """Appends `ids` [T]; returns their logits, fp32 [T, vocabulary]."""
        interface = self._executor.interface
        ids = checked_ids(ids, interface.n_vocab)
        positions = np.arange(self.length, self.length + len(ids), dtype=np.int64)
        feeds = [ids, positions, causal_mask(self.length, len(ids))] + self._cache
        logits, *cache = self._executor.run(dict(zip(interface.inputs, feeds)))
        self._cache = cache
        self.length += len(ids)
        return logits

    def cut(self, n: int) -> None:
        """Keeps the first `n` tokens."""
        if not 0 <= n <= self.length:
            raise UsageError(f"cannot cut a session of {self.length} tokens to {n}")
        self._cache = [past[:, :n] for past in self._cache]
        self.length = n
