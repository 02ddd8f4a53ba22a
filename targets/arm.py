"""64-bit ARM of any kind: boards, servers, Apple silicon."""

from __future__ import annotations

from .target import PERFORMANCE_CORES, Memory, Target

TARGET = Target(
    name="arm",
    description="64-bit ARM board, server or Apple-silicon Mac",
    opt_place="arm",
    machines=("aarch64", "arm64"),
    triple="aarch64-linux-gnu",
    zig_target="aarch64-linux-gnu.2.17",
    wheel_tag="manylinux_2_17_aarch64.manylinux2014_aarch64",
    isa_levels=("neon-i8mm", "neon-dotprod", "neon", "scalar"),
    threads=PERFORMANCE_CORES,
    memory=Memory(sizes=(), system_bytes=350_000_000, read_bandwidth=None),
)
