"""The built-in writer's program: a Paddle ProgramDesc becomes the program of a `.nb` file."""

from __future__ import annotations

from edge_kit.nb import kernels
from edge_kit.nb.format import KERNEL_ATTRIBUTE, AttrType, VarType
from edge_kit.nb.program import Attr, Op, Program, Var
from lite_runtime.errors import UnsupportedError

from .paddle_program import DTYPES, ParsedProgram

# Fields of framework.proto's OpDesc.Attr by attribute type; these are all that the decoder's ops use.
_SCALARS = {
    AttrType.INT: "i",
    AttrType.FLOAT: "f",
    AttrType.STRING: "s",
    AttrType.BOOLEAN: "b",
    AttrType.LONG: "l",
}
_LISTS = {
    AttrType.INTS: "ints",
    AttrType.FLOATS: "floats",
    AttrType.STRINGS: "strings",
    AttrType.LONGS: "longs",
    AttrType.BOOLEANS: "bools",
}
_FETCH_FLOAT = 1  # PRECISION(kFloat): what fetch hands out


def preflight(parsed: ParsedProgram, target: str) -> None:
    """UnsupportedError listing every op that the target lacks, each with the layer it comes from."""
    lacking = []
    layer = "the input"
    for op in parsed.ops:
        for var in op.inputs:
            layer = next((n.rsplit(".", 1)[0] for n in var.arguments if n in parsed.parameters), layer)
        if not kernels.has_kernel(op.type):
            lacking.append(f"  {op.type}, in or after {layer}")
    if lacking:
        raise UnsupportedError(
            f"target {target}: Paddle Lite has no kernel that this kit knows for {len(lacking)} op(s) of the "
            "model:\n" + "\n".join(lacking)
            + "\nSpell these layers in ops listed in edge_kit/nb/kernels.py."
        )


def lower_program(parsed: ParsedProgram, place: str) -> Program:
    """One op for one, with the kernel pick of "x86" or "arm" in each."""
    return Program(
        version=parsed.version,
        ops=[_lower_op(op, place) for op in parsed.ops],
        vars=[_lower_var(var) for var in parsed.vars],
    )


def _lower_op(op, place: str) -> Op:
    attrs = {attr.name: _lower_attr(op.type, attr) for attr in op.attrs}
    attrs[KERNEL_ATTRIBUTE] = Attr(AttrType.STRING, kernels.pick(op.type, place))
    if op.type == "reshape2":
        attrs["inplace"] = Attr(AttrType.BOOLEAN, True)  # the output shares the input's memory
    if op.type == "fetch":
        attrs["data_type"] = Attr(AttrType.INT, _FETCH_FLOAT)
    return Op(
        op.type,
        {var.parameter: list(var.arguments) for var in op.inputs},
        {var.parameter: list(var.arguments) for var in op.outputs},
        dict(sorted(attrs.items())),
    )


def _lower_attr(op_type: str, attr) -> Attr:
    kind = AttrType(attr.type)
    if kind in _SCALARS:
        return Attr(kind, getattr(attr, _SCALARS[kind]))
    if kind in _LISTS:
        return Attr(kind, list(getattr(attr, _LISTS[kind])))
    raise UnsupportedError(
        f"op {op_type}: attribute {attr.name} has the type {kind.name}, which a .nb file lacks"
    )


def _lower_var(var) -> Var:
    kind = VarType(var.type.type)
    if kind != VarType.LOD_TENSOR:
        return Var(var.name, kind, persistable=var.persistable)
    tensor = var.type.dense_tensor.tensor
    return Var(var.name, kind, DTYPES[tensor.data_type], list(tensor.dims), var.persistable)
