"""Reads and trims Paddle's serialized ProgramDesc (framework.proto)."""

from __future__ import annotations

from dataclasses import dataclass

# VarType.Type of framework.proto for element types that the decoder uses.
DTYPES = {0: "bool", 2: "int32", 3: "int64", 5: "float32", 21: "int8"}

# Attributes that only Paddle's own executor or its debugging reads: nine tenths of a program's length.
_NOISE = frozenset(
    "Scale_out Scale_x Scale_y force_fp32_output is_test mkldnn_data_type op_callstack op_device "
    "op_namescope op_role op_role_var use_cudnn use_mkldnn use_quantizer with_quant_attr".split()
)


@dataclass
class ParsedProgram:
    """Block 0: `ops` and `vars` are protobuf messages; `parameters` maps name → (dtype, shape)."""

    message: object
    version: int
    ops: list
    vars: list
    parameters: dict[str, tuple[str, tuple[int, ...]]]

    def serialize(self) -> bytes:
        """The ProgramDesc as Paddle stores it (.pdmodel)."""
        return self.message.SerializeToString()

    def parameters_in_order_of_use(self) -> list[str]:
        """Names, each at the first op that reads it."""
        seen: dict[str, None] = {}
        for op in self.ops:
            for var in op.inputs:
                seen.update((name, None) for name in var.arguments if name in self.parameters)
        return list(seen)


def parse_program(serialized: bytes, names: dict[str, str]) -> ParsedProgram:
    """Parses a ProgramDesc, drops the noise and renames variables by `names`."""
    from paddle.base.proto import framework_pb2

    message = framework_pb2.ProgramDesc()
    message.ParseFromString(serialized)
    block = message.blocks[0]
    for op in block.ops:
        kept = [attr for attr in op.attrs if attr.name not in _NOISE]
        del op.attrs[:]
        op.attrs.extend(kept)
        for argument in (*op.inputs, *op.outputs):
            argument.arguments[:] = [names.get(name, name) for name in argument.arguments]
    parameters = {}
    for var in block.vars:
        var.name = names.get(var.name, var.name)
        if var.persistable and var.name not in ("feed", "fetch"):
            tensor = var.type.dense_tensor.tensor
            parameters[var.name] = (DTYPES[tensor.data_type], tuple(tensor.dims))
    return ParsedProgram(message, message.version.version, list(block.ops), list(block.vars), parameters)
