"""The machines that a `.nb` file can be made for, one file each.

A new target is a new file with a TARGET, named in `_MODULES`.
"""

from __future__ import annotations

import difflib
import importlib
import platform

from lite_runtime.errors import UnsupportedError, UsageError

from .target import Target

_MODULES = ("x86", "arm")
_MACHINES = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm", "arm64": "arm"}


def names() -> list:
    """Names of all targets."""
    return list(_MODULES)


def get(name: str) -> Target:
    """The target called `name`; UsageError with the closest name if there is none."""
    if name not in _MODULES:
        close = difflib.get_close_matches(name, _MODULES, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise UsageError(f"unknown target '{name}', expected one of {', '.join(_MODULES)}{hint}")
    return importlib.import_module(f".{name}", __name__).TARGET


def default() -> str:
    """The name of the target that this machine is."""
    machine = platform.machine().lower()
    if machine not in _MACHINES:
        raise UnsupportedError(
            f"no target for this machine's processor '{machine}'; name one: --target {' or '.join(_MODULES)}"
        )
    return _MACHINES[machine]
