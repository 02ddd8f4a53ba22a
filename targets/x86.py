"""PCs and servers with a 64-bit x86 processor."""

from __future__ import annotations

from .target import Target

TARGET = Target(
    name="x86",
    description="x86-64 PC, server or Intel Mac",
    opt_place="x86",
    machines=("x86_64", "amd64"),
    triple="x86_64-linux-gnu",
    isa_levels=("amx-int8", "avx512-vnni", "avx-vnni", "avx2", "scalar"),
)
