"""An arm64 Python for an x86-64 Debian or Ubuntu: the system's own packages for arm64, run by qemu-user.

The packages are fetched with a package index of their own and unpacked into a folder; nothing is installed
and the system's package lists stay as they are, so no rights are needed.
"""

from __future__ import annotations

import ast
import fcntl
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from lite_runtime.errors import EdgeKitError, UnsupportedError

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "arm-python"

# NumPy's wheels take the C++ library from the system.
_PACKAGES = ("python3", "libstdc++6")
_WHEEL_PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
_TOOLS = ("apt-get", "dpkg-deb", "qemu-aarch64")

# Takes the CPU from QEMU_CPU. `-0` makes Python take this script for itself, so that it finds its library and
# starts subprocesses through qemu again.
_SCRIPT = """#!/bin/sh
root=${0%%/usr/bin/python}
QEMU_LD_PREFIX=$root exec qemu-aarch64 -0 "$0" "$root/usr/bin/%s" "$@"
"""


def arm_python(folder: Path = FOLDER) -> Path:
    """A script that runs an arm64 Python with the kit's dependencies; made below `folder` if it is not there.

    QEMU_CPU in its environment chooses the CPU. Raises UnsupportedError naming the tools that are missing.
    """
    missing = [tool for tool in _TOOLS if not shutil.which(tool)]
    if missing:
        raise UnsupportedError(
            f"an arm64 Python needs {' and '.join(missing)}: on Debian and Ubuntu 'apt install qemu-user', "
            "elsewhere it cannot be made"
        )
    wanted = f"{_PACKAGES} {dependencies()} {_SCRIPT}"
    root, stamp = folder / "root", folder / "made-of"
    with _lock(folder):
        if not stamp.exists() or stamp.read_text() != wanted:
            stamp.unlink(missing_ok=True)  # written last: without it whatever lies there counts as unfinished
            shutil.rmtree(root, ignore_errors=True)
            _unpack_packages(root, folder / "apt")
            script = root / "usr" / "bin" / "python"
            script.write_text(_SCRIPT % f"python{_version(root)}")
            script.chmod(0o755)
            install(root, dependencies(), root / "usr" / "lib" / "python3" / "dist-packages")
            _compile(root)
            stamp.write_text(wanted)
    return root / "usr" / "bin" / "python"


def install(root: Path, requirements, folder: Path, *options: str) -> None:
    """Puts what pip finds for arm64 Linux and the Python in `root` into `folder`, which is new or empty."""
    platforms = [word for name in _WHEEL_PLATFORMS for word in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--only-binary=:all:"]
    command += ["--implementation", "cp", "--python-version", _version(root), *platforms]
    _run([*command, *options, "--target", str(folder), *map(str, requirements)])


def dependencies() -> list:
    """What the kit needs on a device, from pyproject.toml (which Python 3.9 and 3.10 cannot parse)."""
    text = (ROOT / "pyproject.toml").read_text()
    return ast.literal_eval(re.search(r"^dependencies = (\[.*?\])$", text, re.MULTILINE | re.DOTALL)[1])


def _unpack_packages(root: Path, state: Path) -> None:
    """Fetches _PACKAGES and all they depend on, and unpacks them into `root`."""
    shutil.rmtree(state, ignore_errors=True)
    archives = state / "cache" / "archives"
    for path in (archives / "partial", state / "lists" / "partial"):
        path.mkdir(parents=True)
    (state / "status").write_text("")  # as on a machine where nothing is installed
    settings = {
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "APT::Architecture": "arm64",
        "APT::Architectures::": "arm64",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",  # root's downloads too are written by whoever runs this
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    apt = ["apt-get", "-q", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
    _run([*apt, "update"])
    _run([*apt, "install", "-y", "--download-only", *_PACKAGES])
    for package in sorted(archives.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(root)])
    shutil.rmtree(state)


def _version(root: Path) -> str:
    """3.11, say."""
    found = [path.name for path in (root / "usr" / "bin").glob("python3.*")]
    names = [name for name in found if re.fullmatch(r"python3\.\d+", name)]
    if len(names) != 1:
        raise EdgeKitError(f"{root} holds {found or 'no Python'}, expected one: remove it and try again")
    return names[0][len("python") :]


def _compile(root: Path) -> None:
    """Compiles all modules if this machine has a Python of that version: emulated it would take minutes."""
    python = shutil.which(f"python{_version(root)}")
    if python:
        # Some modules are there to fail.
        command = [python, "-m", "compileall", "-q", "-j", "2", str(root / "usr" / "lib")]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _run(command) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    if done.returncode != 0:
        said = "\n".join(done.stdout.strip().splitlines()[-8:])
        raise EdgeKitError(f"the arm64 Python cannot be made, {' '.join(command)} failed:\n{said}")


@contextmanager
def _lock(folder: Path):
    """One at a time makes what lies in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
