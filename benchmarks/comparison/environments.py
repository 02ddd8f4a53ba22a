"""The engines' own Python environments: made by `--install` alone, found by every run."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from benchmarks.engines.base import Engine, EngineError, run_tool

_MARK = "installed.json"  # written last, with what was asked for


def folder_of(engine: Engine, work: Path) -> Path:
    """Everything that an engine keeps: environment, converted models, logs."""
    return work / engine.name.replace("-", "_")


def python_of(engine: Engine, work: Path) -> str:
    """The interpreter that runs the engine."""
    if engine.python is None:
        return sys.executable
    return str(folder_of(engine, work) / "venv" / "bin" / "python")


def skip_reason(engine: Engine, work: Path) -> str | None:
    """Why the engine cannot run here, with the command that changes it; None if it can."""
    if engine.python is None:
        return None
    command = f"python benchmarks/peers.py --install {engine.name} --work {work}"
    mark = folder_of(engine, work) / _MARK
    if not (mark.is_file() and Path(python_of(engine, work)).is_file()):
        return f"not installed: {command}"
    if json.loads(mark.read_text()) != _wanted(engine):
        return f"installed with other requirements than this benchmark asks for: {command}"
    return None


def install(engine: Engine, work: Path) -> None:
    """Makes the engine's environment, going on from what a broken attempt left. EngineError if it fails."""
    if engine.python is None or skip_reason(engine, work) is None:
        return
    folder = folder_of(engine, work)
    log = folder / "install.log"
    (folder / _MARK).unlink(missing_ok=True)
    python = python_of(engine, work)
    if not Path(python).is_file():
        run_tool([_interpreter(engine), "-m", "venv", folder / "venv"], log)
    run_tool([python, "-m", "pip", "install", "--disable-pip-version-check", *engine.requirements], log)
    engine.install(python, folder)
    (folder / _MARK).write_text(json.dumps(_wanted(engine)))


def _wanted(engine: Engine) -> list:
    return [engine.python, *engine.stamp()]


def _interpreter(engine: Engine) -> str:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = sys.executable if version == engine.python else shutil.which(f"python{engine.python}")
    if found is None:
        raise EngineError(f"{engine.name} needs Python {engine.python}: no python{engine.python} on the path")
    return os.path.realpath(found)
