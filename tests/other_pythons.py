"""Installs the kit's wheel, with its base dependencies alone, into every other Python 3.9 to 3.13 here.

One wheel is built and serves them all. Each must import both packages, bring no module that is not the kit's
to the path, and give the same checksum in runtime_smoke.py as the Python that runs this script (which needs
the export extra). Exits with 1 if one does not. A version that is not on the machine is reported as not run.
"""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "other-pythons"
SMOKE = Path(__file__).with_name("runtime_smoke.py")
VERSIONS = [(3, minor) for minor in range(9, 14)]

IMPORTS = """
import importlib.util, sys
import edge_kit, edge_kit.cli, edge_kit.nb, edge_kit.export, edge_kit.targets, lite_runtime
assert "site-packages" in edge_kit.__file__ and "site-packages" in lite_runtime.__file__, edge_kit.__file__
for name in ("export", "targets", "benchmarks", "tests"):
    assert importlib.util.find_spec(name) is None, f"the wheel puts a module named {name} on the path"
for name in ("paddle", "paddlelite", "gguf", "flatbuffers"):
    assert name not in sys.modules, f"importing the kit imports {name}"
"""


def run(*command) -> str:
    """Standard output; ends the script with what the command said if it fails."""
    # From a folder without the sources, so that the installed packages are what is tested.
    done = subprocess.run([str(c) for c in command], cwd=WORK, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def find_python(version: tuple) -> str:
    """Path of a Python of this version: on PATH, else pyenv's; "" if there is none."""
    name = "python{}.{}".format(*version)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    installed = sorted(str(path) for path in pyenv.glob(f"versions/*/bin/{name}"))
    check = "import sys, ensurepip; sys.exit(sys.version_info[:2] != ({}, {}))".format(*version)
    for path in [shutil.which(name), *installed]:
        # pyenv's shims are on PATH for versions that are not switched on.
        if path and subprocess.run([path, "-c", check], capture_output=True).returncode == 0:
            return path
    return ""


def main() -> int:
    WORK.mkdir(parents=True, exist_ok=True)
    model = WORK / "tiny.nb"
    run(sys.executable, ROOT / "export" / "to_nb.py", "--model", "random:tiny", "--optimizer", "builtin",
        "--out", model)
    checksum = run(sys.executable, SMOKE, model)
    for old in WORK.glob("*.whl"):
        old.unlink()
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # setuptools would pack what lies there still
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", WORK, ROOT)
    wheel = next(WORK.glob("*.whl"))
    print(f"checksum {checksum} on Python {sys.version.split()[0]}; wheel {wheel.name}")
    for version in VERSIONS:
        name = "Python {}.{}".format(*version)
        base = find_python(version)
        if not base:
            print(f"{name}: NOT RUN, it is not on this machine")
            continue
        folder = WORK / "venv-{}.{}".format(*version)
        python = folder / "bin" / "python"
        run(base, "-m", "venv", "--clear", folder)
        run(python, "-m", "pip", "install", "-q", wheel)
        run(python, "-c", IMPORTS)
        run(python, SMOKE, model, checksum)
        run(folder / "bin" / "edge-kit", "inspect", model, "--json")
        print(f"{name}: same checksum", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
