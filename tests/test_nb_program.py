"""The program's dataclasses and their coding."""

from __future__ import annotations

import struct

import nb_toy
import pytest

from edge_kit.nb.format import AttrType, VarType
from edge_kit.nb.program import Attr, Op, Program, Var, decode, encode
from lite_runtime.errors import UsageError

VALUES = {
    AttrType.INT: [0, -1, 2**31 - 1],
    AttrType.FLOAT: [0.0, 0.5, -(2.0**100)],
    AttrType.STRING: ["", "今", "a" * 300],
    AttrType.INTS: [[], [1, -2, 3]],
    AttrType.FLOATS: [[], [0.25, -8.0]],
    AttrType.STRINGS: [[], ["a", "", "雉"]],
    AttrType.BOOLEAN: [False, True],
    AttrType.BOOLEANS: [[], [True, False, True]],
    AttrType.BLOCK: [0, 3],
    AttrType.LONG: [0, -(2**63), 2**40],
    AttrType.BLOCKS: [[], [1, 2]],
    AttrType.LONGS: [[], [2**40, -1]],
}


@pytest.mark.parametrize("kind", list(AttrType))
def test_every_attribute_type_comes_back_as_itself(kind):
    attrs = {f"a{i}": Attr(kind, value) for i, value in enumerate(VALUES[kind])}
    program = Program(1, [Op("x", attrs=attrs)], [])
    back = decode(encode(program))
    assert back == program
    for name, attr in attrs.items():
        assert type(back.ops[0].attrs[name].value) is type(attr.value)


def test_toy_comes_back():
    program = nb_toy.program()
    assert decode(encode(program)) == program
    assert program.inputs == ["x"] and program.outputs == ["y2"]


def test_every_variable_type_comes_back():
    kinds = [Var(kind.name, kind, persistable=True) for kind in VarType]
    typed = [Var("t", dtype=dtype, shape=[-1, 0, 2**40]) for dtype in ("int8", "uint8", "bool", "float64")]
    program = Program(3001001, [], kinds + typed)
    assert decode(encode(program)) == program
    with pytest.raises(UsageError, match="bfloat16"):
        encode(Program(1, [], [Var("w", dtype="bfloat16", shape=[1])]))


def test_keys_are_sorted_by_bytes_for_the_binary_search_of_the_stock_runtime():
    keys = ["b", "a", "B", "名", "aa", ""]
    attrs = {key: Attr(AttrType.INT, 1) for key in keys}
    op = Op("x", {key: [] for key in keys}, {key: [key] for key in keys}, attrs)
    back = decode(encode(Program(1, [op], []))).ops[0]
    expected = sorted(keys, key=lambda key: key.encode("utf-8"))
    assert list(back.inputs) == list(back.outputs) == list(back.attrs) == expected


def test_program_inside_a_larger_buffer():
    data = encode(nb_toy.program())
    assert decode(b"x" * 26 + data + b"y" * 9, 26, 26 + len(data)) == nb_toy.program()


def test_random_programs_come_back():
    given, strategies = pytest.importorskip("hypothesis").given, pytest.importorskip("hypothesis.strategies")
    settings = pytest.importorskip("hypothesis").settings

    def single(x):
        return struct.unpack("<f", struct.pack("<f", x))[0]

    name = strategies.text(max_size=12)
    integer = strategies.integers(-(2**31), 2**31 - 1)
    long = strategies.integers(-(2**63), 2**63 - 1)
    number = strategies.floats(width=32, allow_nan=False).map(single)
    scalars = {
        AttrType.INT: integer,
        AttrType.FLOAT: number,
        AttrType.STRING: name,
        AttrType.BOOLEAN: strategies.booleans(),
        AttrType.BLOCK: integer,
        AttrType.LONG: long,
    }
    lists = {
        AttrType.INTS: integer,
        AttrType.FLOATS: number,
        AttrType.STRINGS: name,
        AttrType.BOOLEANS: strategies.booleans(),
        AttrType.BLOCKS: integer,
        AttrType.LONGS: long,
    }
    attr = strategies.one_of(
        [value.map(lambda v, k=kind: Attr(k, v)) for kind, value in scalars.items()]
        + [
            strategies.lists(value, max_size=5).map(lambda v, k=kind: Attr(k, v))
            for kind, value in lists.items()
        ]
    )
    arguments = strategies.dictionaries(name, strategies.lists(name, max_size=3), max_size=3)
    op = strategies.builds(Op, name, arguments, arguments, strategies.dictionaries(name, attr, max_size=4))
    var = strategies.builds(
        Var,
        name,
        dtype=strategies.sampled_from(["int8", "float32"]),
        shape=strategies.lists(long, max_size=4),
        persistable=strategies.booleans(),
    )
    programs = strategies.builds(
        Program, long, strategies.lists(op, max_size=4), strategies.lists(var, max_size=4)
    )

    @settings(max_examples=150, deadline=None)
    @given(programs)
    def check(program):
        assert decode(encode(program)) == program

    check()
