"""The NumPy executor: its int8 arithmetic, its sessions, and how it refuses programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_kit.arithmetic import GROUP, int8_matmul, quantize
from edge_kit.executor import Executor, weight_matmul
from edge_kit.nb.format import AttrType
from edge_kit.nb.program import Attr, Op, encode
from edge_kit.nb.reader import NbFile
from edge_kit.nb.writer import NbWriter
from lite_runtime.errors import FileFormatError, UnsupportedError, UsageError

IDS = [3, 141, 59, 26, 5, 35, 89, 79, 32, 38, 46, 264, 33, 83, 27, 95, 0, 288]


def quantize_plainly(row):
    """The contract of lite_runtime/src/kernels/kernels.h, number by number."""
    q, scales = [], []
    for begin in range(0, len(row), GROUP):
        group = [np.float32(v) for v in row[begin : begin + GROUP]]
        largest = max(abs(v) for v in group)
        inverse = np.float32(127) / largest if largest else np.float32(0)
        q.append([int(np.rint(np.float32(v * inverse))) for v in group])
        scales.append(np.float32(largest / np.float32(127)))
    return q, scales


@pytest.mark.parametrize("n, k", [(1, 1), (5, 7), (16, 64), (33, 65), (16, 176)])
def test_int8_matmul_is_the_contract(n, k):
    rng = np.random.default_rng(k)
    x = rng.standard_normal((3, k)).astype(np.float32) * np.float32(10) ** rng.integers(-4, 4, (3, 1))
    x[1, : min(k, GROUP)] = 0  # a group of zeros
    weight = rng.integers(-127, 128, (n, k), dtype=np.int8)
    q, scales = quantize(x)
    y = int8_matmul(q, scales, weight.astype(np.float32))
    for row in range(3):
        plain_q, plain_scales = quantize_plainly(x[row])
        for group, values in enumerate(plain_q):
            assert q[row, group, : len(values)].tolist() == values
            assert not q[row, group, len(values) :].any()
        assert scales[row].tolist() == plain_scales
        for output in range(n):
            total = np.float32(0)
            for group, values in enumerate(plain_q):
                begin = group * GROUP
                dot = sum(int(w) * v for w, v in zip(weight[output, begin : begin + GROUP], values))
                # One rounding: fp64 holds the product exactly.
                total = np.float32(float(plain_scales[group]) * dot + float(total))
            assert y[row, output] == total


def test_group_sums_are_exact_at_the_largest_magnitude():
    q = np.full((1, 2, GROUP), 127, np.float32)
    weight = np.full((4, 2 * GROUP), -127, np.float32)
    assert (int8_matmul(q, np.ones((1, 2), np.float32), weight) == -127 * 127 * 2 * GROUP).all()


def test_halves_round_to_even():
    x = np.zeros((1, GROUP), np.float32)
    x[0, :6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    q, scales = quantize(x)
    assert scales.tolist() == [[1.0]]
    assert q[0, 0, :6].tolist() == [127, 0, 2, 2, 0, -2]


def test_groups_without_a_scale():
    x = np.zeros((1, 4 * GROUP), np.float32)
    x[0, 0] = 2.0**-121
    x[0, GROUP] = np.nan
    x[0, 2 * GROUP] = -np.inf
    x[0, 3 * GROUP] = 1
    q, scales = quantize(x)
    assert not q[0, :3].any() and q[0, 3, 0] == 127
    assert scales[0, 0] == 0 and np.isnan(scales[0, 1:3]).all() and scales[0, 3] == np.float32(1 / 127)


@pytest.mark.parametrize("mode", ["exact", "int8"])
@pytest.mark.parametrize("trans_y", [True, False])
def test_weight_matmul_in_blocks_is_the_whole(mode, trans_y):
    rng = np.random.default_rng(4)
    rows = 3000  # 87 outputs to a block
    x = rng.integers(-127, 128, (rows, GROUP)).astype(np.float32)
    x[:, 0] = 127  # so that quantizing changes nothing
    weight = rng.integers(-127, 128, (200, GROUP), dtype=np.int8)
    op = Op("matmul_v2", attrs={"trans_y": Attr(AttrType.BOOLEAN, trans_y)})
    y = weight_matmul(op, x, weight if trans_y else np.ascontiguousarray(weight.T), mode)
    assert (y == (x.astype(np.int64) @ weight.T.astype(np.int64))).all()


@pytest.mark.parametrize("mode", ["exact", "int8"])
def test_steps_chunks_and_one_pass_agree(tiny_nb, mode):
    executor = Executor(tiny_nb, mode)
    whole = executor.session().forward(IDS)
    steps, chunks = executor.session(), executor.session()
    one_by_one = np.concatenate([steps.forward([i]) for i in IDS])
    in_chunks = np.concatenate([chunks.forward(IDS[i : i + 7]) for i in range(0, len(IDS), 7)])
    assert whole.shape == (len(IDS), executor.interface.n_vocab) and whole.dtype == np.float32
    # In int8 mode a last-bit difference of BLAS may move an activation by one of its steps.
    limit = (1e-5 if mode == "exact" else 1e-2) * np.abs(whole).max()
    assert np.abs(one_by_one - whole).max() <= limit
    assert np.abs(in_chunks - whole).max() <= limit


def test_a_row_sees_nothing_of_later_tokens(tiny_nb):
    executor = Executor(tiny_nb)
    first, second = executor.session().forward(IDS), executor.session().forward(IDS[:-1] + [7])
    assert np.array_equal(first[:-1], second[:-1])
    assert not np.allclose(first[-1], second[-1])


@pytest.mark.parametrize("n", [0, 1, len(IDS) - 1, len(IDS)])
def test_after_a_cut_the_logits_are_those_of_a_cold_run(tiny_nb, n):
    executor = Executor(tiny_nb)
    session, cold = executor.session(), executor.session()
    session.forward(IDS)
    session.cut(n)
    assert session.length == n
    expected = cold.forward(IDS[:n] + [11, 12])[-2:]
    found = session.forward([11, 12])
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_int8_mode_keeps_the_cache_in_fp16_and_exact_mode_does_not(tiny_nb):
    for mode, lossless in (("int8", True), ("exact", False)):
        session = Executor(tiny_nb, mode).session()
        session.forward(IDS)
        same = [np.array_equal(c, c.astype(np.float16).astype(np.float32)) for c in session._cache]
        assert all(same) if lossless else not any(same)


def test_int8_mode_stays_near_exact_but_is_not_it(tiny_nb):
    exact, int8 = (Executor(tiny_nb, mode).session().forward(IDS) for mode in ("exact", "int8"))
    relative = np.abs(exact - int8).max() / np.abs(exact).max()
    assert 1e-5 < relative < 0.1


def test_an_fp32_file_has_no_activation_rounding(export_nb):
    path = export_nb("random:tiny", quant="fp32")
    exact, int8 = (Executor(path, mode).session().forward(IDS) for mode in ("exact", "int8"))
    assert np.abs(exact - int8).max() <= 2e-3 * np.abs(exact).max()  # the fp16 cache alone


@pytest.mark.parametrize("ids", [[], [-1], [10**9]])
def test_bad_ids_are_refused_and_leave_the_session_as_it_was(tiny_nb, ids):
    session = Executor(tiny_nb).session()
    session.forward(IDS[:3])
    with pytest.raises(UsageError):
        session.forward(ids)
    assert session.length == 3


def test_an_unknown_mode_or_cut_is_refused(tiny_nb):
    with pytest.raises(UsageError, match="int4.*exact, int8"):
        Executor(tiny_nb, "int4")
    session = Executor(tiny_nb).session()
    with pytest.raises(UsageError, match="0 tokens to 1"):
        session.cut(1)


def changed_copy(path, tmp_path, change):
    """A copy of the file whose program went through `change`."""
    with NbFile(path) as file:
        change(file.program)
        with NbWriter(tmp_path / "changed.nb", encode(file.program), file.opt_version) as writer:
            for tensor in file.tensors.values():
                writer.add(tensor.name, tensor.dtype, tensor.shape, file.array(tensor.name))
    return tmp_path / "changed.nb"


def test_an_unknown_op_is_named(tiny_nb, tmp_path):
    def change(program):
        next(op for op in program.ops if op.type == "silu").type = "gelu"

    with pytest.raises(UnsupportedError, match="op gelu .*silu_0"):
        Executor(changed_copy(tiny_nb, tmp_path, change))


def test_an_input_that_the_executor_does_not_read_is_named(tiny_nb, tmp_path):
    def change(program):
        next(op for op in program.ops if op.type == "reshape2").inputs["ShapeTensor"] = ["positions"]

    with pytest.raises(UnsupportedError, match="reshape2.*ShapeTensor"):
        Executor(changed_copy(tiny_nb, tmp_path, change))


def test_a_name_that_nothing_writes_is_named(tiny_nb, tmp_path):
    def change(program):
        next(op for op in program.ops if op.type == "silu").inputs["X"] = ["nowhere"]

    with pytest.raises(FileFormatError, match="silu reads nowhere"):
        Executor(changed_copy(tiny_nb, tmp_path, change))


def test_a_program_with_other_inputs_is_no_decoder(tiny_nb, tmp_path):
    def change(program):
        program.ops = [op for op in program.ops if op.type != "fetch" or op.attr("col") != 1]

    with pytest.raises(UnsupportedError, match="not a decoder"):
        Executor(changed_copy(tiny_nb, tmp_path, change))


def test_program_order_counts_where_names_are_reused(tiny_nb, tmp_path):
    """The file writes one variable for every cast weight; with a name per value nothing may change."""
    writes = [op.outputs["Out"][0] for op in NbFile(tiny_nb).program.ops]
    assert max(writes.count(name) for name in set(writes) - {"fetch"}) > 10

    def change(program):
        latest = {}
        for position, op in enumerate(program.ops):
            for names in op.inputs.values():
                names[:] = [latest.get(name, name) for name in names]
            if op.type not in ("feed", "fetch"):
                name = op.outputs["Out"][0]
                latest[name] = f"{name}.{position}"
                op.outputs["Out"] = [latest[name]]
        interface = {latest[name]: name for name in latest}
        for var in list(program.vars):  # the executor looks up the shape of the logits
            program.vars += [replace(var, name=new) for new, old in interface.items() if old == var.name]

    expected = Executor(tiny_nb).session().forward(IDS)
    found = Executor(changed_copy(tiny_nb, tmp_path, change)).session().forward(IDS)
    assert np.array_equal(found, expected)
