"""Stock Paddle Lite as the executor's judge, and the harness that runs it."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time

import numpy as np
import pytest

from edge_kit import stock as harness
from edge_kit.executor import Executor
from edge_kit.metrics import compare_greedy
from edge_kit.stock import VARIABLE, StockError, StockModel
from lite_runtime.errors import UnsupportedError, UsageError


@pytest.fixture
def stock(stock_python, monkeypatch):
    monkeypatch.setenv(VARIABLE, stock_python)
    return StockModel


def random_ids(model, count):
    return np.random.default_rng(7).integers(0, model.interface.n_vocab, count)


def assert_close(found, expected, limit=1e-5):
    """1e-3 is asked for; 1e-5 is what fp32 gives on so small a model."""
    assert found.shape == expected.shape and found.dtype == expected.dtype == np.float32
    assert np.abs(found - expected).max() <= limit * np.abs(expected).max()


@pytest.mark.parametrize("target", ["x86", "arm"])
@pytest.mark.parametrize("quant", ["int8", "fp32"])
def test_the_executor_gives_the_logits_of_stock(stock, export_nb, target, quant):
    path = export_nb("random:tiny", target=target, quant=quant)
    with stock(path) as model:
        ids = random_ids(model, 70)
        judge, session = model.session(), Executor(path).session()
        assert_close(session.forward(ids[:60]), judge.forward(ids[:60]))
        for i in ids[60:]:
            assert_close(session.forward([i]), judge.forward([i]))


@pytest.mark.stock
def test_the_executor_gives_the_logits_of_stock_on_real_weights(stock, demo_nb):
    with stock(demo_nb) as model:
        judge, session = model.session(), Executor(demo_nb).session()
        text = compare_greedy(judge, session, random_ids(model, 24).tolist(), 8)
        assert text.equal and len(text.ids) == 8
        ids = random_ids(model, 8)
        assert_close(session.forward(ids), judge.forward(ids), 1e-4)


def test_sessions_are_apart_and_cut(stock, tiny_nb):
    with stock(tiny_nb) as model:
        ids = random_ids(model, 20)
        whole = model.session().forward(ids)
        first, second = model.session(), model.session()
        first.forward(ids[:12])
        assert_close(second.forward(ids[:5]), whole[:5])
        first.cut(7)
        assert first.length == 7
        assert_close(first.forward(ids[7:]), whole[7:])
        second.free()
        assert_close(second.forward(ids), whole)
        first.cut(0)
        assert_close(first.forward(ids), whole)
        with pytest.raises(UsageError, match="20 tokens to 21"):
            first.cut(21)
        with pytest.raises(UsageError, match="vocabulary"):
            first.forward([model.interface.n_vocab])


def test_a_closed_model_says_so(stock, tiny_nb):
    model = stock(tiny_nb)
    session = model.session()
    model.close()
    model.close()
    with pytest.raises(UsageError, match="closed"):
        session.forward([1])


def test_a_worker_that_dies_is_reported(stock, tiny_nb):
    with stock(tiny_nb) as model:
        session = model.session()
        os.kill(model._process.pid, signal.SIGKILL)
        with pytest.raises(StockError, match="status -9 while running forward"):
            session.forward([1])


def test_an_exception_in_the_worker_comes_with_its_last_lines(stock, tiny_nb):
    with stock(tiny_nb) as model, pytest.raises(StockError, match="KeyError"):
        model.request(command="cut", session=99, length=0)


def test_a_forward_past_the_timeout_is_stopped(stock, tiny_nb):
    with stock(tiny_nb) as model:
        session = model.session()
        os.kill(model._process.pid, signal.SIGSTOP)
        model._timeout = 0.3
        started = time.perf_counter()
        with pytest.raises(StockError, match="no answer in 0.3 s"):
            session.forward([1])
        assert time.perf_counter() - started < 5


def script(tmp_path, text):
    path = tmp_path / "python"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_no_interpreter_is_named(monkeypatch, tiny_nb):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UnsupportedError, match=f"{VARIABLE} is not set; make one with"):
        StockModel(tiny_nb)


def test_the_named_interpreter_is_missing(monkeypatch):
    monkeypatch.setenv(VARIABLE, "/nowhere/python")
    with pytest.raises(UnsupportedError, match="/nowhere/python, which is no program"):
        harness.stock_python()


def test_a_python_without_paddlelite_is_unfit(monkeypatch, tiny_nb, tmp_path):
    package = tmp_path / "numpy"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '1.26.4'\n")
    run = f"import os, runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = sys.argv[2:]\n"
    monkeypatch.setenv(VARIABLE, script(tmp_path, run + "runpy.run_path(sys.argv[0], run_name='__main__')"))
    with pytest.raises(UnsupportedError, match="cannot import paddlelite.*make one with"):
        StockModel(tiny_nb)


def test_numpy_2_is_unfit(monkeypatch, tiny_nb):
    if int(np.__version__.split(".")[0]) < 2:
        pytest.skip(f"this Python has numpy {np.__version__}")
    monkeypatch.setenv(VARIABLE, sys.executable)
    with pytest.raises(UnsupportedError, match=f"numpy {np.__version__}.*garbage.*numpy<2"):
        StockModel(tiny_nb)


def test_a_program_that_is_no_python_is_reported(monkeypatch, tiny_nb, tmp_path):
    monkeypatch.setenv(VARIABLE, script(tmp_path, "import sys; sys.exit('I am no worker')"))
    with pytest.raises(StockError, match="status 1 while opening the file.*\n.*I am no worker"):
        StockModel(tiny_nb)


def test_a_program_that_never_answers_is_stopped(monkeypatch, tiny_nb, tmp_path):
    monkeypatch.setenv(VARIABLE, script(tmp_path, "import time; time.sleep(60)"))
    with pytest.raises(StockError, match="no answer in 0.3 s"):
        StockModel(tiny_nb, timeout=0.3)
