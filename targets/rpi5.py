"""Raspberry Pi 5, 500 and Compute Module 5: four Cortex-A76 (armv8.2, int8 dot product) on LPDDR4X."""

from __future__ import annotations

from .target import GIB, Memory, Target

TARGET = Target(
    name="rpi5",
    description="Raspberry Pi 5",
    opt_place="arm",
    machines=("aarch64",),
    boards=("Raspberry Pi 5", "Raspberry Pi Compute Module 5"),
    triple="aarch64-linux-gnu",
    zig_target="aarch64-linux-gnu.2.17",
    wheel_tag="manylinux_2_17_aarch64.manylinux2014_aarch64",
    isa_levels=("neon-dotprod", "neon", "scalar"),
    threads=4,
    memory=Memory(
        sizes=(2 * GIB, 4 * GIB, 8 * GIB, 16 * GIB), system_bytes=350_000_000, read_bandwidth=(10.2e9, 10.2e9)
    ),
)
