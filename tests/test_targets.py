"""The targets: one file each, found by name and by machine."""

from __future__ import annotations

import platform

import pytest
from edge_kit.targets.target import PERFORMANCE_CORES

import lite_runtime
from edge_kit import targets
from edge_kit.nb.bundle import read_manifest
from edge_kit.nb.reader import NbFile
from lite_runtime.errors import UnsupportedError, UsageError


def test_every_file_is_a_target():
    assert targets.names() == ["arm", "mac", "rpi4", "rpi5", "x86"]
    for name in targets.names():
        target = targets.get(name)
        assert target.name == name and target.opt_place in ("x86", "arm")
        assert target.isa_levels[-1] == "scalar"
        assert target.threads == PERFORMANCE_CORES or target.threads >= 1
        assert list(target.memory.sizes) == sorted(target.memory.sizes)
        low, high = target.memory.read_bandwidth or (1e9, 1e9)
        assert 1e9 <= low <= high


def test_every_target_of_arm_has_a_part_of_arms_kernels():
    arm = targets.get("arm").isa_levels
    for name in ("mac", "rpi4", "rpi5"):
        levels = targets.get(name).isa_levels
        assert levels == tuple(level for level in arm if level in levels)
        assert targets.get(name).opt_place == "arm"


def test_tags_triples_and_compiler_names_agree():
    for name in targets.names():
        target = targets.get(name)
        arch, system = target.zig_target.split("-")[:2]
        tag_arch = {"x86_64": "x86_64", "aarch64": "arm64" if system.startswith("macos") else "aarch64"}[arch]
        assert all(tag.endswith(f"_{tag_arch}") for tag in target.wheel_tag.split("."))
        assert target.triple.split("-")[0] == tag_arch
        assert target.wheel_tag.startswith("macosx") == system.startswith("macos")


def test_this_machines_kernels_are_the_targets(native_library):
    levels = targets.get(targets.default()).isa_levels
    found = lite_runtime.available_isas()
    assert found == [name for name in levels if name in found]


@pytest.mark.parametrize(
    "machine, system, board, name",
    [
        ("x86_64", "Linux", None, "x86"),
        ("AMD64", "Windows", None, "x86"),
        ("x86_64", "Darwin", None, "x86"),
        ("arm64", "Darwin", None, "mac"),
        ("aarch64", "Linux", None, "arm"),
        ("aarch64", "Linux", "Pine64 RockPro64 v2.1", "arm"),
        ("aarch64", "Linux", "Raspberry Pi 3 Model B Plus Rev 1.3", "arm"),
        ("aarch64", "Linux", "Raspberry Pi 4 Model B Rev 1.4", "rpi4"),
        ("aarch64", "Linux", "Raspberry Pi 400 Rev 1.0", "rpi4"),
        ("aarch64", "Linux", "Raspberry Pi Compute Module 4 Rev 1.1", "rpi4"),
        ("aarch64", "Linux", "Raspberry Pi 5 Model B Rev 1.0", "rpi5"),
        ("aarch64", "Linux", "Raspberry Pi 500 Rev 1.0", "rpi5"),
        ("x86_64", "Linux", "Raspberry Pi 5 Model B Rev 1.0", "x86"),
    ],
)
def test_default_of_a_machine(machine, system, board, name, monkeypatch, tmp_path):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "system", lambda: system)
    if board:
        model = tmp_path / "proc" / "device-tree" / "model"
        model.parent.mkdir(parents=True)
        model.write_bytes(board.encode() + b"\0")
    assert targets.default(tmp_path) == name


def test_unknown_ones_are_named(monkeypatch):
    with pytest.raises(UsageError, match="unknown target 'x68'.*did you mean 'x86'"):
        targets.get("x68")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(UnsupportedError, match="'riscv64'; name one: --target arm or mac or rpi4"):
        targets.default()


@pytest.mark.parametrize("name", ["mac", "rpi4", "rpi5"])
def test_a_file_differs_from_arms_in_its_manifest_alone(name, export_nb):
    paths = [export_nb("random:tiny", target=target) for target in ("arm", name)]
    contents = []
    for path in paths:
        with NbFile(path) as file:
            contents.append(path.read_bytes()[: file.params_end])
    assert contents[0] == contents[1]
    arm, other = map(read_manifest, paths)
    assert {key for key in arm if arm[key] != other[key]} <= {"target", "defaults"}
    assert other["target"] == name and other["defaults"] == {"threads": targets.get(name).threads}
