"""The ARM kernels' instruction counts against the stored ones, and how they are counted."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import shlex
import shutil
import sys
from types import SimpleNamespace

import pytest

from benchmarks import arm_kernels
from benchmarks.arm import cycles, programs
from benchmarks.arm.counts import Emulator
from lite_runtime import build

STORED = json.loads(arm_kernels.STORED.read_text())
GCC, CLANG = (next(one for one in STORED if one["compiler"].startswith(name)) for name in ("gcc", "clang"))
ZIG = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu.2.17"]


@pytest.fixture(scope="module")
def tools():
    """Skips, or fails in CI, without a compiler and an emulator for ARM."""
    try:
        build.qemu_compiler()
    except build.BuildError as error:
        pytest.fail(str(error)) if os.environ.get("CI") else pytest.skip(str(error))


@pytest.fixture(scope="module")
def made(tools, tmp_path_factory) -> SimpleNamespace:
    made = programs.Programs(tmp_path_factory.mktemp("arm_kernels"))
    return SimpleNamespace(work=made.work, plugin=made.plugin(), edge_kit=made.edge_kit())


def check_counts(made, capsys) -> None:
    arguments = ["--check", "--skip-llama", "--skip-cycles", "--work", str(made.work)]
    assert arm_kernels.main(arguments) == 0, capsys.readouterr().err


def test_no_count_is_over_the_stored_one(made, capsys):
    check_counts(made, capsys)


@pytest.mark.wheels
@pytest.mark.skipif(not importlib.util.find_spec("ziglang"), reason="needs ziglang")
def test_no_count_by_the_compiler_of_the_wheels_is_over_the_stored_one(made, capsys, monkeypatch):
    monkeypatch.setenv("CXX", shlex.join(ZIG))
    check_counts(made, capsys)
    assert "not compared" not in capsys.readouterr().err


def test_a_cpu_is_given_its_path_and_every_run_counts_the_same(made):
    for cpu, path in build.QEMU_CPUS.items():
        emulator = Emulator(cpu, made.plugin)
        assert emulator.run(made.edge_kit, 3, 48, 320, 1)[1] == path
        assert emulator.layer(made.edge_kit, 3, 48, 320) == emulator.layer(made.edge_kit, 3, 48, 320)


@pytest.mark.parametrize("rows", [1, 64])
def test_two_small_layers_tell_what_a_large_one_takes(made, rows):
    emulator, n, k = Emulator("max,sve=off", made.plugin), 1536, 512
    counted = emulator.layer(made.edge_kit, rows, n, k) / (rows * n * k)
    assert emulator.per_mac(made.edge_kit, rows, n, k)["total"] == pytest.approx(counted, rel=1e-3)


def figures(result: dict, engine: str, kind: str, figure: str) -> dict:
    """(path, phase, outputs, core) -> figure"""
    return {
        (row["path"], row["phase"], row.get("n"), row.get("core")): row[figure]
        for row in result[kind]
        if row["engine"] == engine
    }


@pytest.mark.parametrize("result", [GCC, CLANG], ids=["gcc", "clang"])
@pytest.mark.parametrize("kind", [("counts", "total"), ("cycles", "cycles")], ids=["instructions", "cycles"])
def test_fewer_than_llama_cpp(result, kind):
    own, other = figures(result, "edge-kit", *kind), figures(GCC, "llama.cpp", *kind)
    assert {path for path, *_ in own} == set(build.QEMU_CPUS.values()) and own.keys() == other.keys()
    assert [place for place in own if own[place] >= other[place]] == []


def test_the_check_names_what_got_slower_and_what_got_faster():
    now = copy.deepcopy(GCC)
    own = [row for row in now["counts"] if row["engine"] == "edge-kit"]
    own[0]["total"] *= 1.03
    own[1]["total"] *= 0.97
    own[2]["total"] *= 1.01
    regressions, notes = arm_kernels.check(now, STORED)
    assert len(regressions) == 1 and "neon decode, 8960 outputs, 1536 inputs" in regressions[0]
    assert len(notes) == 1 and notes[0].startswith("fewer than stored")
    now["counts"][0]["path"] = "neon-new"
    assert any("neon-new" in line and "no stored count" in line for line in arm_kernels.check(now, STORED)[0])


def test_counts_of_another_compiler_are_not_compared():
    now = copy.deepcopy(GCC)
    now["compiler"] = "gcc 99.1.0"
    for row in now["counts"]:
        row["total"] *= 2
    regressions, notes = arm_kernels.check(now, STORED)
    assert regressions == [] and "gcc 99.1.0" in notes[0] and "gcc 12" in notes[0]


def test_instructions_as_llvm_mca_takes_them():
    assert cycles.assembler("b.ne\t44e040 <f+0x2b0>  // b.any") == "b.ne\t#0"
    assert cycles.assembler("cbz\tx7, 44f500 <f>") == "cbz\tx7, #0"
    assert cycles.assembler("tbnz\tw0, #3, 44f500 <f>") == "tbnz\tw0, #3, #0"
    assert cycles.assembler("bl\t44f500 <f>") == "b\t#0"
    assert cycles.assembler("adrp\tx0, 4a0000 <f>") == "adrp\tx0, #0"
    assert cycles.assembler("ret") == "b\t#0"
    assert cycles.assembler("sdot\tv2.4s, v8.16b, v7.4b[0]") == "sdot\tv2.4s, v8.16b, v7.4b[0]"


def test_only_vector_products_of_bytes_are_multiply_accumulates():
    lines = ["add\tx0, x0, x1", "smull\tx0, w1, w2", "smlal2\tv1.8h, v2.16b, v3.16b", "mov\tx0, x1",
             "smmla\tv1.4s, v2.16b, v3.16b", "ret"]
    assert [cycles.macs(line) for line in lines] == [0, 0, 8, 0, 32, 0]
    assert cycles.products(lines) == lines[2:5]
    with pytest.raises(cycles.CyclesError, match="no vector multiplication"):
        cycles.products(lines[:2])


@pytest.mark.skipif(not any(map(shutil.which, arm_kernels.LLVM_MCA)), reason="needs llvm-mca (llvm-19)")
def test_the_multiplications_bound_the_simulated_loop():
    llvm_mca = next(filter(None, map(shutil.which, arm_kernels.LLVM_MCA)))
    lines = [f"sdot\tv{i}.4s, v30.16b, v31.16b" for i in range(16)] * 100
    # Two of Neoverse N1's units multiply, 16 in each.
    assert cycles.cycles_per_mac(lines, "neoverse-n1", llvm_mca) == pytest.approx(1 / 32, rel=0.05)


def test_without_the_tools_it_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    assert arm_kernels.main(["--skip-llama"]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "apt install g++-aarch64-linux-gnu qemu-user" in error
