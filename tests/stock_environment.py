"""Makes .venv-stock, the Python 3.10 with stock Paddle Lite that judges this kit's files; prints its Python.

Takes $EDGE_KIT_STOCK_PYTHON, else python3.10 on PATH, else pyenv's. Prints nothing, and says why on standard
error, where there is none: then the tests marked `stock` are skipped, or fail if CI is set.
"""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-stock"
# NumPy 2 makes paddlelite's from_numpy feed garbage without a word.
REQUIREMENTS = ["paddlelite==2.13rc0", "numpy<2"]


def answers(command: list[str], code: str) -> bool:
    try:
        return subprocess.run(command + ["-c", code], capture_output=True).returncode == 0
    except OSError:
        return False


def has_paddlelite(python: str) -> bool:
    return answers([python], "import numpy, paddlelite.lite; assert numpy.__version__ < '2'")


def candidates() -> list[str]:
    found = [os.environ.get("EDGE_KIT_STOCK_PYTHON"), shutil.which("python3.10")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found += sorted((str(path) for path in pyenv.glob("versions/3.10.*/bin/python3.10")), reverse=True)
    return [path for path in found if path]


def make() -> str:
    """Path of a Python that has stock Paddle Lite, "" if none can be made."""
    given = os.environ.get("EDGE_KIT_STOCK_PYTHON")
    if given and has_paddlelite(given):
        return given
    python = FOLDER / "bin" / "python"
    if python.exists() and has_paddlelite(str(python)):
        return str(python)
    is_310 = "import sys; assert sys.version_info[:2] == (3, 10)"
    base = next((path for path in candidates() if answers([path], is_310)), None)
    if base is None:
        print("no Python 3.10 found: tests against stock Paddle Lite cannot run. Install python3.10 or set "
              "EDGE_KIT_STOCK_PYTHON to one", file=sys.stderr)
        return ""
    for command in ([base, "-m", "venv", "--clear", str(FOLDER)],
                    [str(python), "-m", "pip", "install", "-q", *REQUIREMENTS]):
        done = subprocess.run(command, stdout=sys.stderr)
        if done.returncode != 0:
            print(f"{' '.join(command)} failed: tests against stock Paddle Lite cannot run", file=sys.stderr)
            return ""
    return str(python)


if __name__ == "__main__":
    print(make())
