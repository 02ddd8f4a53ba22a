"""PCs and servers with a 64-bit x86 processor."""

from __future__ import annotations

from .target import PERFORMANCE_CORES, Memory, Target

TARGET = Target(
    name="x86",
    description="x86-64 PC, server or Intel Mac",
    opt_place="x86",
    machines=("x86_64", "amd64"),
    triple="x86_64-linux-gnu",
    zig_target="x86_64-linux-gnu.2.17",
    wheel_tag="manylinux_2_17_x86_64.manylinux2014_x86_64",
    isa_levels=("amx-int8", "avx512-vnni", "avx-vnni", "avx2", "scalar"),
    threads=PERFORMANCE_CORES,
    memory=Memory(sizes=(), system_bytes=500_000_000, read_bandwidth=None),
)
