"""A small model for tests of the `.nb` library: y = x W^T * scale + bias with W int8 in tiles, and its cache
input passed through. Stock Paddle Lite runs it."""

from __future__ import annotations

import numpy as np

from edge_kit.nb import tiles
from edge_kit.nb.format import KERNEL_ATTRIBUTE, AttrType, VarType
from edge_kit.nb.kernels import pick
from edge_kit.nb.program import Attr, Op, Program, Var
from edge_kit.nb.writer import NbWriter

N, K = 48, 32
OPT_VERSION = "v2.13-rc"
PADDLE_VERSION = 3001001


def tensors() -> dict:
    generator = np.random.default_rng(7)
    weight = generator.integers(-127, 128, (N, K), dtype=np.int8)
    return {
        "proj.bias": generator.standard_normal(N).astype(np.float32),
        "proj.scale": generator.uniform(0.001, 0.01, N).astype(np.float32),
        "proj.weight": tiles.pack(weight),
    }


def expected(x: np.ndarray) -> np.ndarray:
    """What the toy computes, in fp32."""
    values = tensors()
    weight = tiles.unpack(values["proj.weight"]).astype(np.float32)
    return x @ weight.T * values["proj.scale"] + values["proj.bias"]


def _one_each(arguments: dict) -> dict:
    return {parameter: [name] for parameter, name in arguments.items()}


def program(target: str = "x86") -> Program:
    def op(op_type, inputs, outputs, **attrs):
        values = {KERNEL_ATTRIBUTE: Attr(AttrType.STRING, pick(op_type, target)), **attrs}
        return Op(op_type, _one_each(inputs), _one_each(outputs), values)

    def integer(value):
        return Attr(AttrType.INT, value)

    def integers(*values):
        return Attr(AttrType.INTS, list(values))

    false, true = Attr(AttrType.BOOLEAN, False), Attr(AttrType.BOOLEAN, True)
    axis = integer(-1)
    ops = [
        op("feed", {"X": "feed"}, {"Out": "x"}, col=integer(0)),
        op("cast", {"X": "proj.weight"}, {"Out": "w32"}, in_dtype=integer(21), out_dtype=integer(5)),
        op("transpose2", {"X": "w32"}, {"Out": "rows", "XShape": "s1"}, axis=integers(0, 2, 1, 3)),
        op("reshape2", {"X": "rows"}, {"Out": "w", "XShape": "s2"}, shape=integers(N, K), inplace=true),
        op("matmul_v2", {"X": "x", "Y": "w"}, {"Out": "y0"}, trans_x=false, trans_y=true),
        op("elementwise_mul", {"X": "y0", "Y": "proj.scale"}, {"Out": "y1"}, axis=axis),
        op("elementwise_add", {"X": "y1", "Y": "proj.bias"}, {"Out": "y2"}, axis=axis),
        op("fetch", {"X": "y2"}, {"Out": "fetch"}, col=integer(0), data_type=integer(1)),
    ]
    shapes = {"x": [-1, K], "w32": [N // 16, K // 4, 16, 4], "rows": [N // 16, 16, K // 4, 4], "w": [N, K]}
    variables = [Var("feed", VarType.FEED_MINIBATCH, persistable=True)]
    variables += [Var(name, dtype="float32", shape=shape) for name, shape in shapes.items()]
    variables += [Var(name, dtype="float32", shape=[-1, N]) for name in ("y0", "y1", "y2")]
    variables += [Var(name, dtype="float32", shape=[0, 4]) for name in ("s1", "s2")]
    variables += [
        Var(name, dtype=value.dtype.name, shape=list(value.shape), persistable=True)
        for name, value in tensors().items()
    ]
    variables.append(Var("fetch", VarType.FETCH_LIST, persistable=True))
    return Program(PADDLE_VERSION, ops, variables)


def write(path, target: str = "x86", bundle=None) -> None:
    with NbWriter(path, program(target), OPT_VERSION, bundle) as writer:
        for name, value in tensors().items():
            writer.add(name, value.dtype.name, value.shape, value)
