"""The cache's types: what load takes, what a token costs, and the int8 cache against the NumPy executor."""

from __future__ import annotations

import numpy as np
import pytest

import lite_runtime
from edge_kit import arithmetic
from edge_kit.cli import main
from edge_kit.executor import Executor
from edge_kit.fixed_text import fixed_texts
from edge_kit.metrics import Comparison, compare_text
from lite_runtime.errors import UsageError

IDS = [(7 * i * i + 3) % 300 for i in range(230)]  # three full blocks of the cache and a part of one


@pytest.fixture(scope="module")
def int8(native_library, tiny_nb):
    with lite_runtime.load(tiny_nb, kv_dtype="int8") as model:
        yield model


def test_what_load_and_the_executor_refuse(native_library, tiny_nb, capsys):
    for kv_dtype in ("fp16", "", 8, ["int8"]):
        with pytest.raises(UsageError, match="kv_dtype .*, expected one of f16, int8"):
            lite_runtime.load(tiny_nb, kv_dtype=kv_dtype)
    with pytest.raises(UsageError, match="kv_dtype 'int4' is unknown"):
        Executor(tiny_nb, "int8", "int4")
    assert main(["run", str(tiny_nb), "x", "--kv-dtype", "int4"]) == 2
    assert "--kv-dtype int4, expected one of f16, int8" in capsys.readouterr().err


def test_a_token_takes_half_the_memory(int8, tiny_nb):
    with lite_runtime.load(tiny_nb) as f16, lite_runtime.load(tiny_nb, mode="exact") as exact:
        per_head = 2 * f16.info.head_dim * f16.info.n_kv_heads * f16.info.n_layers
        assert f16.info.kv_bytes_per_token == 2 * per_head and exact.info.kv_bytes_per_token == 4 * per_head
        scales = 2 * 4 * f16.info.n_kv_heads * f16.info.n_layers
        assert per_head < int8.info.kv_bytes_per_token <= per_head + scales


@pytest.mark.parametrize("step", [len(IDS), 7])
def test_every_isa_gives_the_executors_floats(native_library, tiny_nb, step):
    session = Executor(tiny_nb, "int8", "int8").session()
    expected = np.concatenate([session.forward(IDS[i : i + 100]) for i in range(0, len(IDS), 100)])
    for isa in lite_runtime.available_isas():
        with lite_runtime.load(tiny_nb, isa=isa, kv_dtype="int8") as model:
            found = model.session()
            rows = [found.forward(IDS[i : i + step]) for i in range(0, len(IDS), step)]
        np.testing.assert_array_equal(np.concatenate(rows), expected, err_msg=isa)
    with lite_runtime.load(tiny_nb) as model:
        f16 = model.session().forward(IDS)
    assert np.array_equal(f16[:64], expected[:64]) and not np.array_equal(f16[64:], expected[64:])


@pytest.mark.parametrize("n", [0, 1, 64, 100, 128, 150, 192, 200, 229])
def test_cut_equals_a_cold_start(int8, n):
    session = int8.session()
    int8.forward([(session, IDS, "none")])
    session.cut(n)
    assert len(session) == n and session.tokens == IDS[:n]
    fork, rest = session.fork(), [5, 6, 7]
    (warm,) = int8.forward([(session, rest, "all")])
    (fresh,) = int8.forward([(int8.session(), IDS[:n] + rest, "all")])
    assert np.array_equal(warm, fresh[n:])
    assert np.array_equal(fork.forward(rest), warm)


def test_planes_without_a_scale():
    x = np.ones((1, 128, 3), np.float32)
    x[0, :64, 0] = 0
    x[0, 5, 1] = np.inf
    x[0, 70] = 0
    keys, values = (arithmetic.int8_blocks(x, axis) for axis in (-2, -1))
    assert not keys[0, :64, 0].any() and np.isnan(keys[0, :64, 1]).all() and (keys[0, :64, 2] == 1).all()
    assert np.isnan(values[0, 5]).all() and not values[0, 70].any() and (values[0, 71] == 1).all()


def test_the_int8_cache_alone_costs_next_to_nothing(native_library, demo_nb):
    """With fp32 activations on both sides: in int8 mode any last-bit difference alone moves the perplexity by
    some tenths of a per cent, see `edge_kit.commands.verify`."""
    comparison = Comparison()
    with lite_runtime.load(demo_nb, mode="exact") as exact:
        with lite_runtime.load(demo_nb, mode="exact", kv_dtype="int8") as quantized:
            for text in fixed_texts():
                ids = exact.text.encode(text)
                for _ in compare_text(comparison, exact.session(), quantized.session(), ids):
                    pass
    report = comparison.report()
    print(report)
    assert report.tokens >= 2000
    assert report.perplexity_ratio <= 1.002
    assert 0 < report.mean_kl <= 0.0005
