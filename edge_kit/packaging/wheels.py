"""Builds a wheel for every platform of the targets on this machine: `python -m edge_kit.packaging.wheels`.

The `ziglang` package is the cross compiler. Equal sources and tools give equal wheels, byte for byte. Every
wheel is checked (edge_kit/packaging/check.py) before it is kept; those for Linux are installed and generate
text too (edge_kit/packaging/trial.py), for ARM under qemu.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from edge_kit import targets
from lite_runtime.errors import EdgeKitError, UnsupportedError

from . import trial
from .check import check_wheel, is_macos

ROOT = Path(__file__).resolve().parents[2]
_OLDEST_ZIP_TIME = "315532800"  # 1980-01-01, for all files: when a wheel was built must not show


def platforms(names) -> list:
    """One target for each wheel that those called `names` take: targets of one wheel tag share the wheel."""
    found = {}
    for name in names:
        found.setdefault(targets.get(name).wheel_tag, targets.get(name))
    return list(found.values())


def zig() -> str:
    """Path of the compiler in the `ziglang` package."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None:
        raise UnsupportedError(f"no cross compiler: {shlex.quote(sys.executable)} -m pip install ziglang")
    return str(Path(spec.origin).with_name("zig"))


def build_wheel(target, out: Path) -> Path:
    """Builds the wheel of `target` into the folder `out`.

    Raises EdgeKitError if it cannot be built or breaks a rule.
    """
    for stale in (ROOT / "build").glob("lib*"):  # setuptools would pack what lies there still
        shutil.rmtree(stale)
    environment = {
        **os.environ,
        "CXX": shlex.join([zig(), "c++", "-target", target.zig_target]),
        "EDGE_KIT_WHEEL_PLATFORM": target.wheel_tag,
        "SOURCE_DATE_EPOCH": _OLDEST_ZIP_TIME,
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, str(ROOT)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, umask=0o022)
        if done.returncode != 0:
            raise EdgeKitError(f"the wheel for {target.name} cannot be built: {done.stdout}{done.stderr}")
        (built,) = Path(folder).glob("*.whl")
        problems = check_wheel(built, target)
        if problems:
            raise EdgeKitError(f"the wheel for {target.name} breaks the rules: {'; '.join(problems)}")
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(str(built), str(out / built.name)))


def _try_all(built: dict) -> None:
    """Lets each wheel generate text; what cannot be run here is said, and is an error if CI is set."""
    with tempfile.TemporaryDirectory() as folder:
        model = trial.export_model(Path(folder))
        expected = trial.checksum(model)
        for target, wheel in built.items():
            if is_macos(target) and not trial.is_for_this_machine(target):
                print(f"{wheel.name}: built and checked, not run: it needs a Mac", flush=True)
                continue
            try:
                trial.try_wheel(wheel, target, model, expected)
                print(f"{wheel.name}: installed, and generates the same text as this checkout", flush=True)
            except UnsupportedError as error:
                if os.environ.get("CI"):
                    raise
                print(f"{wheel.name}: NOT RUN: {error}", flush=True)


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser("edge_kit.packaging.wheels", description=__doc__.split(":")[0])
    parser.add_argument(
        "only", nargs="*", metavar="TARGET", help="the wheels of these alone; default: of all targets"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR", help="default: dist/")
    options = parser.parse_args(arguments)
    try:
        built = {}
        for target in platforms(options.only or targets.names()):
            wheel = built[target] = build_wheel(target, options.out)
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            print(f"{wheel}: {wheel.stat().st_size / 1e6:.2f} MB, sha256 {digest}", flush=True)
        _try_all(built)
    except EdgeKitError as error:
        print(f"wheels: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
