"""What the kit needs to know of a machine that a `.nb` file is made for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """One target.

    opt_place: what paddle_lite_opt calls it (--valid_targets).
    machines: what platform.machine() says on machines that this is the default for, in lower case.
    triple: what the native library is compiled for.
    isa_levels: kernel paths of the native runtime, best first; the last one runs on every such machine.
    """

    name: str
    description: str
    opt_place: str
    machines: tuple
    triple: str
    isa_levels: tuple
