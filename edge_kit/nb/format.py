"""Constants of a `.nb` file: the container, and the schema of the FlatBuffers tables inside it.

Container, meta version 2, little-endian:

    u16 meta version = 2 | char[16] opt version | u64 program bytes | FlatBuffer ProgramDesc
    u16 0 | u16 0 | u16 header bytes = 6 | u16 tensor count | u32 bytes of the largest tensor
    per tensor: u32 total (bytes after this field) | u32 offset | (offset - 4) bytes of padding |
                FlatBuffer ParamDesc (total - offset bytes)

A slot is a field's place in its FlatBuffers table, counted from 0 in the order of the schema (Paddle Lite's
lite/model_parser/flatbuffers/framework.fbs and param.fbs); a union takes two slots, type and value.
"""

from __future__ import annotations

import enum
import struct

META_VERSION = 2
OPT_VERSION_BYTES = 16
FILE_HEADER = struct.Struct("<H16sQ")  # meta version, opt version, program bytes
PARAMS_HEADER = struct.Struct("<HHHHI")  # version, meta bytes, header bytes, tensor count, largest tensor
PARAMS_HEADER_BYTES = 6  # what the "header bytes" field says: tensor count and largest tensor
RECORD_HEADER = struct.Struct("<II")  # total, offset
ALIGNMENT = 64  # of a tensor's data in the file: one cache line, one AVX-512 register
MAX_TENSORS = 0xFFFF
MAX_RECORD_BYTES = 0xFFFFFFFF
KERNEL_ATTRIBUTE = "__@kernel_type_attr@__"  # "op/alias/target/precision/layout"


class AttrType(enum.IntEnum):
    """Types of an op's attribute."""

    INT = 0
    FLOAT = 1
    STRING = 2
    INTS = 3
    FLOATS = 4
    STRINGS = 5
    BOOLEAN = 6
    BOOLEANS = 7
    BLOCK = 8
    LONG = 9
    BLOCKS = 10
    LONGS = 11


class VarType(enum.IntEnum):
    """Element types (BOOL to FP64, UINT8, INT8) and kinds of variables share one enumeration."""

    BOOL = 0
    INT16 = 1
    INT32 = 2
    INT64 = 3
    FP16 = 4
    FP32 = 5
    FP64 = 6
    LOD_TENSOR = 7
    SELECTED_ROWS = 8
    FEED_MINIBATCH = 9
    FETCH_LIST = 10
    STEP_SCOPES = 11
    LOD_RANK_TABLE = 12
    LOD_TENSOR_ARRAY = 13
    PLACE_LIST = 14
    READER = 15
    RAW = 17
    TUPLE = 18
    SIZE_T = 19
    UINT8 = 20
    INT8 = 21


# Element type -> (NumPy name, bytes per element).
ELEMENTS = {
    VarType.BOOL: ("bool", 1),
    VarType.INT16: ("int16", 2),
    VarType.INT32: ("int32", 4),
    VarType.INT64: ("int64", 8),
    VarType.FP16: ("float16", 2),
    VarType.FP32: ("float32", 4),
    VarType.FP64: ("float64", 8),
    VarType.UINT8: ("uint8", 1),
    VarType.INT8: ("int8", 1),
}
ELEMENT_TYPES = {name: kind for kind, (name, _) in ELEMENTS.items()}
ELEMENT_SIZES = {name: size for name, size in ELEMENTS.values()}


class Target(enum.IntEnum):
    """Third number of a kernel pick: where the kernel runs."""

    HOST = 1
    X86 = 2
    ARM = 4


# The slots of each table.


class ProgramDesc:
    BLOCKS, VERSION, OP_VERSION_MAP = range(3)


class Version:
    VERSION = 0


class BlockDesc:
    IDX, PARENT_IDX, VARS, OPS, FORWARD_BLOCK_IDX = range(5)


class OpDesc:
    TYPE, INPUTS, OUTPUTS, ATTRS, IS_TARGET = range(5)


class OpVar:
    PARAMETER, ARGUMENTS = range(2)


class OpAttr:
    NAME, TYPE, I, F, S, INTS, FLOATS, STRINGS, B, BOOLS, BLOCK_IDX, L, BLOCKS_IDX, LONGS = range(14)  # noqa: E741


class VarDesc:
    NAME, TYPE, PERSISTABLE, NEED_CHECK_FEED = range(4)


class VarTypeDesc:
    TYPE, SELECTED_ROWS, LOD_TENSOR, TENSOR_ARRAY, READER, TUPLE = range(6)


class LoDTensorDesc:
    TENSOR, LOD_LEVEL = range(2)


class TensorDesc:
    DATA_TYPE, DIMS = range(2)


class ParamDesc:
    VERSION, NAME, VARIABLE_TYPE, VARIABLE = range(4)
    LOD_TENSOR = 1  # value of VARIABLE_TYPE


class ParamTensor:
    LOD_LEVEL, LOD, DIM, DATA_TYPE, DATA = range(5)
