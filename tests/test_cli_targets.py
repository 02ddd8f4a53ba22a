"""The targets: one file each, found by name and by machine."""

from __future__ import annotations

import platform

import pytest

import lite_runtime
from edge_kit import targets
from lite_runtime.errors import UnsupportedError, UsageError


def test_every_file_is_a_target():
    assert {"x86", "arm"} <= set(targets.names())
    for name in targets.names():
        target = targets.get(name)
        assert target.name == name and target.opt_place in ("x86", "arm")
        assert target.isa_levels[-1] == "scalar"


def test_this_machines_kernels_are_the_targets(native_library):
    levels = targets.get(targets.default()).isa_levels
    found = lite_runtime.available_isas()
    assert found == [name for name in levels if name in found]


@pytest.mark.parametrize(
    "machine, name", [("x86_64", "x86"), ("AMD64", "x86"), ("aarch64", "arm"), ("arm64", "arm")]
)
def test_default_of_a_machine(machine, name, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert targets.default() == name


def test_unknown_ones_are_named(monkeypatch):
    with pytest.raises(UsageError, match="unknown target 'x68'.*did you mean 'x86'"):
        targets.get("x68")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(UnsupportedError, match="'riscv64'; name one: --target arm or x86"):
        targets.default()
