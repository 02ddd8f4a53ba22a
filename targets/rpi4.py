"""Raspberry Pi 4, 400 and Compute Module 4: four Cortex-A72 (armv8.0, no int8 dot product) on LPDDR4."""

from __future__ import annotations

from .target import GIB, Memory, Target

TARGET = Target(
    name="rpi4",
    description="Raspberry Pi 4 with a 64-bit system",
    opt_place="arm",
    machines=("aarch64",),
    boards=("Raspberry Pi 4", "Raspberry Pi Compute Module 4"),
    triple="aarch64-linux-gnu",
    zig_target="aarch64-linux-gnu.2.17",
    wheel_tag="manylinux_2_17_aarch64.manylinux2014_aarch64",
    isa_levels=("neon", "scalar"),
    threads=4,
    # A 2 GB board shows Linux some 1.85 GB; Raspberry Pi OS Lite takes the rest of it.
    memory=Memory(
        sizes=(GIB, 2 * GIB, 4 * GIB, 8 * GIB), system_bytes=350_000_000, read_bandwidth=(3.4e9, 5.0e9)
    ),
)
