"""The ARM kernels as they are compiled here: no instruction where a CPU may not know it. And what the build
says when it cannot run them."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from arm_instructions import instructions, misplaced

from lite_runtime import build

BUILD_PY = build.PACKAGE / "build.py"
def need_compiler():
    if not shutil.which(build.QEMU_COMPILER):
        pytest.skip("needs g++-aarch64-linux-gnu")


@pytest.fixture(scope="module")
def objects() -> dict:
    """File name -> its functions, of the whole library for aarch64 Linux."""
    need_compiler()
    arm = build.Build(build.Compiler([build.QEMU_COMPILER]))
    with arm.lock():
        return {path.stem: instructions(path) for path in arm.objects()}


@pytest.mark.arm
def test_no_instruction_outside_the_files_of_its_path(objects):
    assert [place for name, functions in objects.items() for place in misplaced(name, functions)] == []


@pytest.mark.arm
def test_each_path_has_its_instructions(objects):
    used = {name: set().union(*objects[name].values()) for name in ("neon", "neon_dotprod", "neon_i8mm")}
    assert {"smull", "smlal2", "sadalp"} <= used["neon"]
    assert "sdot" in used["neon_dotprod"] and "smmla" in used["neon_i8mm"]


@pytest.mark.arm
@pytest.mark.parametrize("flags_of", ["neon_dotprod.cc", "neon_i8mm.cc"])
def test_a_file_built_with_the_flags_of_another_is_found(tmp_path, flags_of):
    need_compiler()
    arm, output = build.Build(build.Compiler([build.QEMU_COMPILER])), tmp_path / "reference.o"
    source = build.SOURCES / "kernels" / "reference.cc"
    command = arm.compiler.command + arm.flags + arm.isa_flags[flags_of]
    subprocess.run([*command, f"-I{build.SOURCES}", "-c", str(source), "-o", str(output)], check=True)
    places = misplaced("reference", instructions(output))
    assert any("linear_int8" in place and place.endswith("dot") for place in places)


def test_flags_as_zig_spells_them():
    flags = build.read_isa_flags("aarch64")
    assert build.zig_flag(flags["neon_i8mm.cc"][-1], is_macos=False) == "-mcpu=generic+dotprod+i8mm"
    assert build.zig_flag(flags["neon_dotprod.cc"][-1], is_macos=True) == "-mcpu=apple_m1+dotprod"
    assert [build.zig_flag(flag, is_macos=False) for flag in flags["neon.cc"]] == flags["neon.cc"]


def run_qemu_tests(**environment):
    command = [sys.executable, str(BUILD_PY), "run-tests", "--qemu"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


def test_without_the_tools_it_names_their_packages():
    done = run_qemu_tests(PATH="/nonexistent")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "need aarch64-linux-gnu-g++ and qemu-aarch64" in done.stderr
    assert "apt install g++-aarch64-linux-gnu qemu-user" in done.stderr


@pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="needs qemu-user")
@pytest.mark.skipif(build.host_arch() == "aarch64", reason="a compiler for this machine is one for ARM")
def test_a_compiler_for_another_machine_is_refused():
    native = build.find_compiler().command
    if not shutil.which(native[0]) or native[0] == sys.executable:
        pytest.skip("needs a compiler of this machine")
    done = run_qemu_tests(PATH="/usr/bin:/bin", CXX=native[0])
    assert done.returncode == 2
    assert "need a compiler for aarch64 Linux" in done.stderr and "unset CXX" in done.stderr
