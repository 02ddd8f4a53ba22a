"""The machines that a `.nb` file can be made for: one file each, with a TARGET. A new file, a new target."""

from __future__ import annotations

import importlib
import pkgutil
import platform

from lite_runtime import device
from lite_runtime.errors import UnsupportedError, UsageError, did_you_mean

from .target import Target


def names() -> list:
    """Names of all targets."""
    return [module.name for module in pkgutil.iter_modules(__path__) if module.name != "target"]


def get(name: str) -> Target:
    """The target called `name`; UsageError with the closest name if there is none."""
    if name not in names():
        raise UsageError(
            f"unknown target '{name}', expected one of {', '.join(names())}{did_you_mean(name, names())}"
        )
    return importlib.import_module(f".{name}", __name__).TARGET


def default(root="/") -> str:
    """The name of the target that this machine is, the most specific one: a board's or a system's before a
    processor's. `root` is where /proc lies."""
    machine = platform.machine().lower()
    board = device.board(root)
    found = [target for target in map(get, names()) if target.is_machine(machine, platform.system(), board)]
    if not found:
        raise UnsupportedError(
            f"no target for this machine's processor '{machine}'; name one: --target {' or '.join(names())}"
        )
    return max(found, key=lambda target: bool(target.boards) + bool(target.system)).name
