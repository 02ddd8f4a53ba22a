"""64-bit ARM: Raspberry Pi and other boards, Apple silicon, ARM servers."""

from __future__ import annotations

from .target import Target

TARGET = Target(
    name="arm",
    description="64-bit ARM board, server or Apple-silicon Mac",
    opt_place="arm",
    machines=("aarch64", "arm64"),
    triple="aarch64-linux-gnu",
    isa_levels=("neon-i8mm", "neon-dotprod", "neon", "scalar"),
)
