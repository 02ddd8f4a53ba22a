"""Fixtures that all tests share: the native library, exported models, stock Paddle Lite's Python."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from exported import ROOT, export, exported_path

if str(ROOT) not in sys.path:  # `pytest` without `python -m`, in a Python that edge-kit is not installed in
    sys.path.insert(0, str(ROOT))

# Small matrix products of the NumPy executor: more threads only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

NEVER_SKIPPED_IN_CI = ("arm", "stock", "sanitizer", "reference", "wheels", "embedding", "web", "ray", "nginx")


def pytest_collection_modifyitems(items):
    for item in items:
        if "stock_python" in getattr(item, "fixturenames", ()):
            item.add_marker("stock")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    marks = [name for name in NEVER_SKIPPED_IN_CI if item.get_closest_marker(name)]
    if report.skipped and not hasattr(report, "wasxfail") and marks and os.environ.get("CI"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"a {marks[0]} test may not be skipped when CI is set: {reason}"


@pytest.fixture(scope="session")
def native_library() -> Path:
    """EDGE_KIT_LIBRARY, else the release build of the native library, made first if it is out of date."""
    if os.environ.get("EDGE_KIT_LIBRARY"):
        return Path(os.environ["EDGE_KIT_LIBRARY"])
    command = [sys.executable, str(ROOT / "lite_runtime" / "build.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    if done.returncode != 0:
        pytest.fail(f"the native library cannot be built:\n{done.stderr}", pytrace=False)
    return Path(done.stdout.split()[-1])


@pytest.fixture(scope="session")
def stock_python() -> str:
    """A Python 3.10 that has stock Paddle Lite (`make test` makes one); the test is skipped without."""
    python = os.environ.get("EDGE_KIT_STOCK_PYTHON") or str(ROOT / ".venv-stock" / "bin" / "python")
    os.environ["EDGE_KIT_STOCK_PYTHON"] = python  # where the kit itself looks
    probe = "import numpy, paddlelite.lite; assert numpy.__version__ < '2', 'paddlelite needs numpy<2'"
    try:
        done = subprocess.run([python, "-c", probe], capture_output=True, text=True)
        problem = done.stderr.strip().splitlines()[-1:] if done.returncode else None
    except OSError as error:
        problem = [str(error)]
    if problem is not None:
        reason = "".join(problem)
        pytest.skip(f"no stock Paddle Lite in {python} ({reason}): python tests/stock_environment.py")
    return python


@pytest.fixture(scope="session")
def export_nb():
    """export_nb(model, target="x86", quant="int8") -> path of the exported file, kept under build/."""

    def export_once(model: str, target: str = "x86", quant: str = "int8") -> Path:
        # Emulated nothing can be exported: on_arm.py did, and a file that it forgot is an error.
        if not exported_path(model, target, quant).exists() and not os.environ.get("EDGE_KIT_EMULATED"):
            pytest.importorskip("paddle", reason="export needs paddlepaddle")
        try:
            return export(model, target, quant)
        except RuntimeError as error:
            pytest.fail(str(error), pytrace=False)

    return export_once


@pytest.fixture(scope="session")
def tiny_nb(export_nb) -> Path:
    """random:tiny (QKV bias, untied head) for x86, INT8."""
    return export_nb("random:tiny")


@pytest.fixture(scope="session")
def demo_nb(export_nb) -> Path:
    """SmolLM2-135M-Instruct for x86, INT8."""
    return export_nb("demo")


@pytest.fixture(scope="session")
def r1_nb(tmp_path_factory) -> Path:
    """random:tiny with the tokenizer and the chat template of R1's distill of Qwen2."""
    pytest.importorskip("paddle", reason="export needs paddlepaddle")
    from r1_model import export_r1_tiny

    return export_r1_tiny(tmp_path_factory.mktemp("r1"))


@pytest.fixture(scope="module")
def browser():
    """Chromium, for the web page."""
    api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("the page is tested in Chromium: apt install chromium")
    with api.sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        browser.close()


def _loaded(path):
    import lite_runtime

    with lite_runtime.load(path) as model:
        yield model


@pytest.fixture(scope="module")
def tiny(native_library, tiny_nb):
    """random:tiny, loaded."""
    yield from _loaded(tiny_nb)


@pytest.fixture(scope="module")
def demo(native_library, demo_nb):
    """The demo, loaded."""
    yield from _loaded(demo_nb)


@pytest.fixture(scope="module")
def r1(native_library, r1_nb):
    """random:tiny with R1's tokenizer and template, loaded."""
    yield from _loaded(r1_nb)


@pytest.fixture
def pool(tiny):
    """A pool of sessions of the tiny model, with room for all."""
    from lite_runtime.pool import SessionPool

    pool = SessionPool(tiny, 1 << 30)
    yield pool
    pool.close()


@pytest.fixture
def script(monkeypatch):
    """A Script: what the model says is what the test told it to."""
    from conversations import Script

    script = Script()
    monkeypatch.setattr("lite_runtime.generate.sample", script.sample)
    return script
