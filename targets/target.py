"""What the kit needs to know of a machine that a `.nb` file is made for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """One target.

    opt_place: what paddle_lite_opt calls it (--valid_targets).
    kernel_target: TargetType of Paddle Lite's lite/api/paddle_place.h, the third number of a kernel pick.
    machines: what platform.machine() says on machines that this is the default for, in lower case.
    triple: what the native library is compiled for.
    isa_levels: kernel paths of the native runtime, best first; the last one runs on every such machine.
    default_threads: threads of the runtime; 0 = as many as the machine has physical cores.
    """

    name: str
    description: str
    opt_place: str
    kernel_target: int
    machines: tuple
    triple: str
    isa_levels: tuple
    default_threads: int = 0
