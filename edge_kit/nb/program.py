"""The program of a `.nb` file as plain dataclasses, and its FlatBuffers coding both ways."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

from edge_kit.nb import format as nb
from edge_kit.nb.errors import UnsupportedNbFile
from edge_kit.nb.flat import Buffer, Table
from edge_kit.nb.format import AttrType, VarType


class Attr(NamedTuple):
    """An attribute's value with the type the file gives it (an INT and a LONG of 3 are not the same)."""

    type: AttrType
    value: Any


@dataclass
class Op:
    """One op; `inputs` and `outputs` map a parameter ("X") to the names of its variables."""

    type: str
    inputs: dict[str, list[str]] = field(default_factory=dict)
    outputs: dict[str, list[str]] = field(default_factory=dict)
    attrs: dict[str, Attr] = field(default_factory=dict)

    def attr(self, name: str, default=None):
        """The value of an attribute without its type."""
        found = self.attrs.get(name)
        return default if found is None else found.value

    @property
    def kernel(self) -> str:
        """The kernel pick, "op/alias/target/precision/layout"; empty in a program that opt has not seen."""
        found = self.attr(nb.KERNEL_ATTRIBUTE)
        return found if isinstance(found, str) else ""

    @property
    def column(self) -> int:
        """Which input a feed op fills, which output a fetch op returns."""
        found = self.attr("col")
        return found if isinstance(found, int) else 0


@dataclass
class Var:
    """One variable. Of a LOD_TENSOR, `dtype` is NumPy's name and `shape` has -1 for dynamic sizes."""

    name: str
    type: VarType = VarType.LOD_TENSOR
    dtype: Optional[str] = None
    shape: list[int] = field(default_factory=list)
    persistable: bool = False


@dataclass
class Program:
    """Block 0 in program order. `version` is Paddle's, as 3001001 for 3.1.1."""

    version: int
    ops: list[Op]
    vars: list[Var]

    @property
    def inputs(self) -> list[str]:
        """Variables that the feed ops fill, by column."""
        feeds = sorted((op for op in self.ops if op.type == "feed"), key=lambda op: op.column)
        return [name for op in feeds for name in op.outputs.get("Out", [])]

    @property
    def outputs(self) -> list[str]:
        """Variables that the fetch ops return, by column."""
        fetches = sorted((op for op in self.ops if op.type == "fetch"), key=lambda op: op.column)
        return [name for op in fetches for name in op.inputs.get("X", [])]


# Attribute type -> (slot, kind of field, struct code).
_FIELDS = {
    AttrType.INT: (nb.OpAttr.I, "scalar", "i"),
    AttrType.FLOAT: (nb.OpAttr.F, "scalar", "f"),
    AttrType.STRING: (nb.OpAttr.S, "text", ""),
    AttrType.INTS: (nb.OpAttr.INTS, "scalars", "i"),
    AttrType.FLOATS: (nb.OpAttr.FLOATS, "scalars", "f"),
    AttrType.STRINGS: (nb.OpAttr.STRINGS, "texts", ""),
    AttrType.BOOLEAN: (nb.OpAttr.B, "scalar", "?"),
    AttrType.BOOLEANS: (nb.OpAttr.BOOLS, "scalars", "?"),
    AttrType.BLOCK: (nb.OpAttr.BLOCK_IDX, "scalar", "i"),
    AttrType.LONG: (nb.OpAttr.L, "scalar", "q"),
    AttrType.BLOCKS: (nb.OpAttr.BLOCKS_IDX, "scalars", "i"),
    AttrType.LONGS: (nb.OpAttr.LONGS, "scalars", "q"),
}


def decode(data, start: int = 0, end: Optional[int] = None, label: str = "program") -> Program:
    """Reads the ProgramDesc in data[start:end]; FileFormatError where a table is damaged."""
    buffer = Buffer(data, start, len(data) if end is None else end, label)
    root = buffer.root("the program")
    blocks = list(root.tables(nb.ProgramDesc.BLOCKS, "block"))
    if not blocks:
        raise buffer.fail(root.position, "the program", "it has no block")
    if len(blocks) > 1:
        raise UnsupportedNbFile(
            f"{label}: the program has {len(blocks)} blocks; this kit reads programs of one block "
            "(no while or conditional ops)"
        )
    version = root.table(nb.ProgramDesc.VERSION, "the program's version")
    return Program(
        version=version.scalar(nb.Version.VERSION, "q", 0) if version else 0,
        ops=[_decode_op(op) for op in blocks[0].tables(nb.BlockDesc.OPS, "op")],
        vars=[_decode_var(var) for var in blocks[0].tables(nb.BlockDesc.VARS, "variable")],
    )


def _enum(kind, number: int, table: Table):
    try:
        return kind(number)
    except ValueError:
        problem = f"no {kind.__name__} has the number {number}"
        raise table.buffer.fail(table.position, table.what, problem) from None


def element_name(number: int, table: Table) -> str:
    """NumPy's name of an element type; FileFormatError if the number is none."""
    kind = _enum(VarType, number, table)
    if kind not in nb.ELEMENTS:
        raise table.buffer.fail(table.position, table.what, f"{kind.name} is no element type")
    return nb.ELEMENTS[kind][0]


def _decode_op(op: Table) -> Op:
    op_type = op.text(nb.OpDesc.TYPE)
    op.what = f"{op.what} ({op_type[:64]})"
    attrs = {}
    for attr in op.tables(nb.OpDesc.ATTRS, f"{op.what} attribute"):
        kind = _enum(AttrType, attr.scalar(nb.OpAttr.TYPE, "i", 0), attr)
        slot, getter, code = _FIELDS[kind]
        if getter == "scalar":
            value = attr.scalar(slot, code, 0.0 if code == "f" else False if code == "?" else 0)
        elif getter == "scalars":
            value = attr.scalars(slot, code)
        else:
            value = attr.text(slot, "") if getter == "text" else attr.texts(slot)
        attrs[attr.text(nb.OpAttr.NAME)] = Attr(kind, value)
    inputs = _decode_arguments(op, nb.OpDesc.INPUTS, f"{op.what} input")
    outputs = _decode_arguments(op, nb.OpDesc.OUTPUTS, f"{op.what} output")
    return Op(op_type, inputs, outputs, attrs)


def _decode_arguments(op: Table, slot: int, what: str) -> dict:
    return {var.text(nb.OpVar.PARAMETER): var.texts(nb.OpVar.ARGUMENTS) for var in op.tables(slot, what)}


def _decode_var(table: Table) -> Var:
    name = table.text(nb.VarDesc.NAME)
    what = f"variable {name[:64]}"
    kind_table = table.table(nb.VarDesc.TYPE, what, required=True)
    kind = _enum(VarType, kind_table.scalar(nb.VarTypeDesc.TYPE, "i", 0), kind_table)
    var = Var(name, kind, persistable=bool(table.scalar(nb.VarDesc.PERSISTABLE, "B", 0)))
    tensor = kind_table.table(nb.VarTypeDesc.LOD_TENSOR, what)
    if kind == VarType.LOD_TENSOR and tensor:
        desc = tensor.table(nb.LoDTensorDesc.TENSOR, what, required=True)
        var.dtype = element_name(desc.scalar(nb.TensorDesc.DATA_TYPE, "i", 0), desc)
        var.shape = desc.scalars(nb.TensorDesc.DIMS, "q")
    return var


def encode(program: Program) -> bytes:
    """The ProgramDesc FlatBuffer. Needs the `flatbuffers` package (part of the export extra)."""
    from edge_kit.nb.encoder import encode_program

    return encode_program(program)
