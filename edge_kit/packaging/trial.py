"""Installs a wheel into an empty environment and lets it generate text, for ARM under qemu."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from lite_runtime.errors import EdgeKitError, UnsupportedError

from .arm_python import ROOT, arm_python, install
from .check import is_macos

# What would make a Python take another library, other modules or another kernel path than its own.
_LEADS_ELSEWHERE = ("PYTHONPATH", "EDGE_KIT_LIBRARY", "EDGE_KIT_ISA")
_SMOKE = ROOT / "tests" / "runtime_smoke.py"


def export_model(folder: Path) -> Path:
    """A small model to try wheels with."""
    path = folder / "tiny.nb"
    options = ["--model", "random:tiny", "--optimizer", "builtin", "--out", str(path)]
    _run([sys.executable, "-m", "edge_kit", "export", *options], ROOT, {})
    return path


def checksum(model: Path) -> str:
    """Of the tokens and text that this checkout generates with `model`, as runtime_smoke.py counts it."""
    return _run([sys.executable, str(_SMOKE), str(model)], ROOT, {})


def try_wheel(wheel: Path, target, model: Path, expected: str) -> None:
    """Raises EdgeKitError if the installed wheel does not generate what has the checksum `expected`.

    Raises UnsupportedError where nothing of this machine can run it.
    """
    with tempfile.TemporaryDirectory(prefix="edge-kit-wheel-") as scratch:
        folder = Path(scratch)
        if is_for_this_machine(target):
            python, environment = _virtual_environment(wheel, folder)
        elif not is_macos(target) and target.machines[0] == "aarch64" and platform.system() == "Linux":
            python, environment = arm_python(), {"PYTHONPATH": str(folder), "QEMU_CPU": "cortex-a72"}
            install(python.parents[2], [wheel], folder, "--no-deps")
        else:
            raise UnsupportedError(f"no {platform.system()} on {platform.machine()} runs it")
        where = _run([python, "-c", "import lite_runtime; print(lite_runtime.__file__)"], folder, environment)
        if not Path(where).resolve().is_relative_to(folder.resolve()):
            raise EdgeKitError(f"{wheel.name} was installed into {folder}, but Python imports {where}")
        found = _run([python, str(_SMOKE), str(model)], folder, environment)
        if found != expected:
            raise EdgeKitError(f"{wheel.name} generates other tokens: checksum {found}, expected {expected}")
        command = [python, folder / "bin" / "edge-kit", "run", model, "hi", "--max-new-tokens", "3"]
        if not _run(command, folder, environment):
            raise EdgeKitError(f"{wheel.name}: edge-kit run prints nothing")


def is_for_this_machine(target) -> bool:
    """Whether the Python at hand can load the library of the target's wheel."""
    system = "Darwin" if is_macos(target) else "Linux"
    return platform.system() == system and platform.machine() in target.machines


def _virtual_environment(wheel: Path, folder: Path) -> tuple:
    python = folder / "bin" / "python"
    _run([sys.executable, "-m", "venv", folder], ROOT, {})
    _run([python, "-m", "pip", "install", "-q", str(wheel)], folder, {})
    return python, {}


def _run(command, cwd: Path, environment: dict) -> str:
    """Standard output."""
    inherited = {name: value for name, value in os.environ.items() if name not in _LEADS_ELSEWHERE}
    command = [str(part) for part in command]
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, encoding="utf-8", timeout=900,
        env={**inherited, **environment},
    )  # fmt: skip
    if done.returncode != 0:
        raise EdgeKitError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")
    return done.stdout.strip()
