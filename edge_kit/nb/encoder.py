"""Program -> FlatBuffer, with the `flatbuffers` package. The device side never imports this.

Stock Paddle Lite finds inputs, outputs and attributes by binary search, so they are sorted by key.
Strings are not shared: each object's bytes are its own, as in the files that opt writes.
"""

from __future__ import annotations

from edge_kit.nb import format as nb
from edge_kit.nb.format import AttrType, VarType
from lite_runtime.errors import UnsupportedError, UsageError


def _builder():
    try:
        import flatbuffers
    except ImportError:
        raise UnsupportedError(
            "writing a program needs the package flatbuffers: pip install 'edge-kit[export]'"
        ) from None
    return flatbuffers.Builder(1 << 16)


class _Encoder:
    """Children are written before their parents, as a FlatBuffer grows from its end."""

    def __init__(self):
        self.builder = _builder()

    def vector(self, offsets: list) -> int:
        return self._vector(offsets, 4, self.builder.PrependUOffsetTRelative)

    def _vector(self, values: list, element_bytes: int, prepend) -> int:
        self.builder.StartVector(element_bytes, len(values), element_bytes)
        for value in reversed(values):
            prepend(value)
        return self.builder.EndVector()

    def texts(self, values: list) -> int:
        return self.vector([self.builder.CreateString(value) for value in values])

    def longs(self, values: list) -> int:
        return self._vector(values, 8, self.builder.PrependInt64)

    def table(self, n_slots: int, offsets: dict, scalars: tuple = ()) -> int:
        """`offsets`: slot -> child; `scalars`: (slot, "Int32" …, value, default)."""
        builder = self.builder
        builder.StartObject(n_slots)
        for slot, kind, value, default in scalars:
            getattr(builder, f"Prepend{kind}Slot")(slot, value, default)
        for slot, offset in offsets.items():
            builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
        return builder.EndObject()

    def arguments(self, arguments: dict) -> int:
        tables = []
        for parameter in sorted(arguments, key=str.encode):
            name, names = self.builder.CreateString(parameter), self.texts(arguments[parameter])
            tables.append(self.table(2, {nb.OpVar.PARAMETER: name, nb.OpVar.ARGUMENTS: names}))
        return self.vector(tables)

    def attribute(self, name: str, attr) -> int:
        slots, builder = nb.OpAttr, self.builder
        kind, value = AttrType(attr.type), attr.value
        offsets = {slots.NAME: builder.CreateString(name)}
        scalars = [(slots.TYPE, "Int32", int(kind), 0)]
        if kind == AttrType.INT:
            scalars.append((slots.I, "Int32", value, 0))
        elif kind == AttrType.LONG:
            scalars.append((slots.L, "Int64", value, 0))
        elif kind == AttrType.FLOAT:
            scalars.append((slots.F, "Float32", value, 0.0))
        elif kind == AttrType.BOOLEAN:
            scalars.append((slots.B, "Bool", value, False))
        elif kind == AttrType.BLOCK:
            scalars.append((slots.BLOCK_IDX, "Int32", value, 0))
        elif kind == AttrType.STRING:
            offsets[slots.S] = builder.CreateString(value)
        elif kind == AttrType.STRINGS:
            offsets[slots.STRINGS] = self.texts(value)
        elif kind == AttrType.INTS:
            offsets[slots.INTS] = self._vector(value, 4, builder.PrependInt32)
        elif kind == AttrType.BLOCKS:
            offsets[slots.BLOCKS_IDX] = self._vector(value, 4, builder.PrependInt32)
        elif kind == AttrType.LONGS:
            offsets[slots.LONGS] = self.longs(value)
        elif kind == AttrType.FLOATS:
            offsets[slots.FLOATS] = self._vector(value, 4, builder.PrependFloat32)
        elif kind == AttrType.BOOLEANS:
            offsets[slots.BOOLS] = self._vector(value, 1, builder.PrependBool)
        return self.table(14, offsets, scalars)

    def op(self, op) -> int:
        attrs = [self.attribute(name, op.attrs[name]) for name in sorted(op.attrs, key=str.encode)]
        return self.table(
            5,
            {
                nb.OpDesc.TYPE: self.builder.CreateString(op.type),
                nb.OpDesc.INPUTS: self.arguments(op.inputs),
                nb.OpDesc.OUTPUTS: self.arguments(op.outputs),
                nb.OpDesc.ATTRS: self.vector(attrs),
            },
        )

    def var(self, var) -> int:
        offsets = {}
        if var.type == VarType.LOD_TENSOR and var.dtype is not None:
            if var.dtype not in nb.ELEMENT_TYPES:
                raise UsageError(f"variable {var.name}: a .nb file has no element type {var.dtype}")
            tensor = self.table(
                2,
                {nb.TensorDesc.DIMS: self.longs(var.shape)},
                [(nb.TensorDesc.DATA_TYPE, "Int32", int(nb.ELEMENT_TYPES[var.dtype]), 0)],
            )
            offsets[nb.VarTypeDesc.LOD_TENSOR] = self.table(2, {nb.LoDTensorDesc.TENSOR: tensor})
        kind = self.table(6, offsets, [(nb.VarTypeDesc.TYPE, "Int32", int(var.type), 0)])
        return self.table(
            4,
            {nb.VarDesc.NAME: self.builder.CreateString(var.name), nb.VarDesc.TYPE: kind},
            [(nb.VarDesc.PERSISTABLE, "Bool", var.persistable, False)],
        )


def encode_program(program) -> bytes:
    """See program.encode."""
    encoder = _Encoder()
    no_parent = [(nb.BlockDesc.PARENT_IDX, "Int32", -1, 0), (nb.BlockDesc.FORWARD_BLOCK_IDX, "Int32", -1, -1)]
    variables = encoder.vector([encoder.var(var) for var in program.vars])
    ops = encoder.vector([encoder.op(op) for op in program.ops])
    block = encoder.table(5, {nb.BlockDesc.VARS: variables, nb.BlockDesc.OPS: ops}, no_parent)
    version = encoder.table(1, {}, [(nb.Version.VERSION, "Int64", program.version, 0)])
    blocks = encoder.vector([block])
    root = encoder.table(3, {nb.ProgramDesc.BLOCKS: blocks, nb.ProgramDesc.VERSION: version})
    encoder.builder.Finish(root)
    return bytes(encoder.builder.Output())
