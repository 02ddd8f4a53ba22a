"""Macs with Apple silicon: M1 has the int8 dot product, M2 and later int8 matrix products too."""

from __future__ import annotations

from .target import GIB, PERFORMANCE_CORES, Memory, Target

TARGET = Target(
    name="mac",
    description="Mac with Apple silicon",
    opt_place="arm",
    machines=("arm64",),
    system="Darwin",
    triple="arm64-apple-macosx11.0",
    zig_target="aarch64-macos.11.0",
    wheel_tag="macosx_11_0_arm64",
    isa_levels=("neon-i8mm", "neon-dotprod", "neon", "scalar"),
    threads=PERFORMANCE_CORES,
    # What the processor cores of an M2 and an M1 read; Pro, Max and Ultra read more.
    memory=Memory(
        sizes=(8 * GIB, 16 * GIB, 24 * GIB, 32 * GIB), system_bytes=3_000_000_000, read_bandwidth=(57e9, 60e9)
    ),
)
