"""The ARM kernels as they are compiled here: no instruction where a CPU may not know it. And what the build
says when it cannot run them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from lite_runtime import build

BUILD_PY = build.PACKAGE / "build.py"
needs_gcc = pytest.mark.skipif(
    not shutil.which(build.QEMU_COMPILER), reason="needs g++-aarch64-linux-gnu"
)

# Instructions beyond ARMv8.0 -> the words that name the files and functions which may hold them.
EXTENSIONS = {
    r"[su]dot": "dotprod|i8mm",
    r"([su]|us)mmla|usdot|sudot": "i8mm",
    # Atomics, rounding multiplication, complex numbers, bfloat16: compilers choose these by themselves.
    r"(ld|st)(add|set|clr|eor|[su]max|[su]min)[alhb]*|swp[alhb]*|casp?[alhb]*|ldapr[hb]?": "nowhere",
    r"sqrdml[as]h|fcmla|fcadd|bf(dot|mmla|mlal[bt]|cvtn?2?)": "nowhere",
}


def instructions(path) -> dict:
    """Function -> mnemonics of one object file."""
    listing = subprocess.run(
        ["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", str(path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    functions: dict = {}
    for line in listing.splitlines():
        heading = re.fullmatch(r"[0-9a-f]+ <(.+)>:", line)
        if heading:
            found = functions.setdefault(heading[1], set())
        elif "\t" in line:
            found.add(line.split("\t")[1].strip())
    return functions


def misplaced(file_name: str, functions: dict) -> list:
    """What stands where it must not: "file function instruction"."""
    return [
        f"{file_name} {function} {mnemonic}"
        for function, mnemonics in functions.items()
        for mnemonic in sorted(mnemonics)
        for extension, words in EXTENSIONS.items()
        if re.fullmatch(extension, mnemonic) and not re.search(words, f"{file_name} {function}")
    ]


@pytest.fixture(scope="module")
def objects() -> dict:
    """File name -> its functions, of the whole library for aarch64 Linux."""
    arm = build.Build(build.Compiler([build.QEMU_COMPILER]))
    with arm.lock():
        return {path.stem: instructions(path) for path in arm.objects()}


@needs_gcc
def test_no_instruction_outside_the_files_of_its_path(objects):
    assert [place for name, functions in objects.items() for place in misplaced(name, functions)] == []


@needs_gcc
def test_each_path_has_its_instructions(objects):
    used = {name: set().union(*objects[name].values()) for name in ("neon", "neon_dotprod", "neon_i8mm")}
    assert {"smull", "smlal2", "sadalp"} <= used["neon"]
    assert "sdot" in used["neon_dotprod"] and "smmla" in used["neon_i8mm"]


@needs_gcc
@pytest.mark.parametrize("flags_of", ["neon_dotprod.cc", "neon_i8mm.cc"])
def test_a_file_built_with_the_flags_of_another_is_found(tmp_path, flags_of):
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
