"""What the kit needs to know of a machine that a `.nb` file is made for."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30

# For `threads`: the cores of the fastest kind, which the runtime counts where it runs
# (lite_runtime/src/engine/cpu.cc; hw.perflevel0.physicalcpu on a Mac).
PERFORMANCE_CORES = "performance-cores"


@dataclass(frozen=True)
class Memory:
    """Memory of a target, to plan with. All figures are leads from the field: others report them, none was
    measured with the kit.

    sizes: bytes of RAM that the machine is sold with; () where that says nothing.
    system_bytes: what firmware, kernel and services of a usual installation keep for themselves.
    read_bandwidth: bytes per second that the cores together read from memory, (lowest, highest) of what is
    reported; None where machines differ too much.
    """

    sizes: tuple
    system_bytes: int
    read_bandwidth: tuple | None


@dataclass(frozen=True)
class Target:
    """One target.

    opt_place: what paddle_lite_opt calls it (--valid_targets).
    machines: what platform.machine() says on such machines, in lower case.
    triple: what a GCC or Clang cross compiler calls it.
    zig_target: what the `ziglang` compiler calls it, with the oldest libc or macOS that a wheel runs on.
    wheel_tag: platform tags of that wheel.
    isa_levels: kernel paths of the native runtime, best first; the last one runs on every such machine.
    threads: default of the runtime there, a number or PERFORMANCE_CORES.
    boards, system: what narrows `machines` down: how the device tree's model begins, platform.system().
    """

    name: str
    description: str
    opt_place: str
    machines: tuple
    triple: str
    zig_target: str
    wheel_tag: str
    isa_levels: tuple
    threads: int | str
    memory: Memory
    boards: tuple = ()
    system: str = ""

    def is_machine(self, machine: str, system: str, board: str) -> bool:
        """Whether a machine that says this of itself is one of these."""
        return (
            machine in self.machines
            and self.system in ("", system)
            and (not self.boards or board.startswith(self.boards))
        )
