"""lite_runtime/build.py: what it builds, what it leaves alone, and what it says when it cannot."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import edge_kit
from lite_runtime import _native, build

BUILD = Path(build.__file__)

SOURCES = {
    "src/api/api.cc": '#include "edge_kit.h"\n'
    'extern "C" uint32_t ek_abi_version(void) { return EK_ABI_VERSION; }\n',
    "src/kernels/one.h": "#define ONE 1\n",
    "src/kernels/one.cc": '#include "kernels/one.h"\nint one() { return ONE + FROM_FLAGS; }\n',
    "src/kernels/flags.txt": "# file arch flags\n"
    "one.cc any -DFROM_FLAGS=6\none.cc other_cpu -DFROM_FLAGS=no\n",
}


@pytest.fixture()
def tree(tmp_path):
    """A small native source tree with its own copy of build.py."""
    package = tmp_path / "lite_runtime"
    for name, text in SOURCES.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    shutil.copytree(BUILD.parent / "include", package / "include")
    shutil.copy(BUILD, package)
    return package


def run_build(package, *arguments, **environment):
    return subprocess.run(
        [sys.executable, str(package / "build.py"), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
    )


def library_of(package) -> Path:
    return package / build.find_compiler().library_name


def objects_of(package) -> dict:
    return {path.name: path.stat().st_mtime_ns for path in (package.parent / "build").rglob("*.o")}


def test_builds_with_each_files_own_flags(tree):
    done = run_build(tree)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(library_of(tree))
    assert ctypes.CDLL(str(library_of(tree))).ek_abi_version() == _native.ABI_VERSION


def test_second_build_does_nothing(tree):
    run_build(tree)
    before = library_of(tree).stat().st_mtime_ns, objects_of(tree)
    assert run_build(tree).returncode == 0
    assert (library_of(tree).stat().st_mtime_ns, objects_of(tree)) == before


def test_a_changed_header_rebuilds_what_includes_it(tree):
    run_build(tree)
    before = objects_of(tree)
    (tree / "src/kernels/one.h").write_text("#define ONE 2\n")
    assert run_build(tree).returncode == 0
    changed = {name for name, stamp in objects_of(tree).items() if stamp != before[name]}
    assert changed == {"one.o"}


def test_changed_flags_rebuild_their_file(tree):
    run_build(tree)
    before = objects_of(tree)
    (tree / "src/kernels/flags.txt").write_text("one.cc any -DFROM_FLAGS=7\n")
    assert run_build(tree).returncode == 0
    assert {name for name, stamp in objects_of(tree).items() if stamp != before[name]} == {"one.o"}


def test_a_failed_build_keeps_the_library_and_shows_the_compilers_message(tree):
    run_build(tree)
    (tree / "src/kernels/one.cc").write_text("int one( {\n")
    done = run_build(tree)
    assert done.returncode == 2
    assert "one.cc:1" in done.stderr and "building one.o failed" in done.stderr
    assert library_of(tree).exists()
    assert not list(tree.parent.rglob("*.part"))


def test_an_undefined_function_fails_the_link(tree):
    (tree / "src/api/more.cc").write_text(
        'int nowhere();\nextern "C" int ek_more(void) { return nowhere(); }\n'
    )
    done = run_build(tree)
    assert done.returncode == 2
    assert "nowhere" in done.stderr
    assert not library_of(tree).exists()


def test_sanitized_library_does_not_replace_the_other(tree):
    done = run_build(tree, "--sanitize", "undefined")
    if done.returncode != 0 and "sanitize" in done.stderr:
        pytest.skip("the C++ compiler has no sanitizers")
    assert done.returncode == 0, done.stderr
    assert not library_of(tree).exists()
    assert Path(done.stdout.strip()).parent.name == "undefined"


def test_native_tests_are_run_and_a_failure_is_named(tree):
    tests = tree.parent / "tests" / "native"
    tests.mkdir(parents=True)
    (tests / "good_test.cc").write_text(
        '#include "edge_kit.h"\nint main() { return ek_abi_version() != EK_ABI_VERSION; }\n'
    )
    assert run_build(tree, "run-tests").returncode == 0
    (tests / "bad_test.cc").write_text("int main() { return 3; }\n")
    done = run_build(tree, "run-tests")
    assert done.returncode == 1
    assert "bad_test FAILED: exit status 3" in done.stdout
    assert "1 of 2 native test programs passed" in done.stdout


def test_no_compiler_is_one_message(tree):
    # -S hides the ziglang wheel, should it be installed.
    done = subprocess.run(
        [sys.executable, "-S", str(tree / "build.py")],
        capture_output=True,
        text=True,
        env={"PATH": "/nonexistent"},
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "no C++ compiler found" in done.stderr and "pip install ziglang" in done.stderr


@pytest.mark.parametrize(
    ("cxx", "message"), [("no-such-compiler", "cannot be started"), ("true", "names no machine")]
)
def test_a_bad_cxx_is_named(tree, cxx, message):
    done = run_build(tree, CXX=cxx)
    assert done.returncode == 2
    assert cxx in done.stderr and message in done.stderr


def test_without_sources_it_says_where_to_get_them(tree):
    shutil.rmtree(tree / "src")
    done = run_build(tree)
    assert done.returncode == 2
    assert "needs a checkout or the sdist" in done.stderr


def test_the_library_is_of_this_version(native_library):
    library = ctypes.CDLL(str(native_library))
    library.ek_version.restype = ctypes.c_char_p
    assert library.ek_version().decode() == edge_kit.__version__


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("nm"), reason="reads ELF with nm")
def test_the_library_exports_only_its_c_api(native_library):
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(native_library)], capture_output=True, text=True
    )
    names = {line.split()[-1] for line in listing.stdout.splitlines()}
    header = (BUILD.parent / "include" / "edge_kit.h").read_text()
    declared = {
        part.split("(")[0].split()[-1].lstrip("*") for part in header.split("EK_API ")[1:] if "(" in part
    }
    assert names == {name for name in declared if name.startswith("ek_")}


@pytest.mark.skipif(not shutil.which("aarch64-linux-gnu-g++"), reason="no aarch64-linux-gnu-g++")
def test_the_core_compiles_for_aarch64_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, str(BUILD), "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "CXX": "aarch64-linux-gnu-g++"},
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert (tmp_path / "libedge_kit.so").read_bytes()[18] == 183  # ELF's number for aarch64
