"""The wheels that `make wheels` builds, and the rules that they are checked by."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from arm_instructions import instructions, misplaced

from edge_kit import targets
from edge_kit.packaging import check, trial, wheels
from edge_kit.packaging.elf import read_elf
from edge_kit.packaging.macho import read_macho
from lite_runtime.errors import EdgeKitError, UnsupportedError

pytestmark = pytest.mark.wheels

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True, scope="session")
def compiler():
    pytest.importorskip("ziglang", reason="the wheels are cross-compiled with the ziglang package")


def python(*command, cwd=ROOT, executable=sys.executable) -> str:
    command = [str(part) for part in (executable, *command)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def built(compiler) -> dict:
    """Platform tag -> (wheel, target)."""
    out = ROOT / "build" / "test-wheels"
    shutil.rmtree(out, ignore_errors=True)
    found = {target.wheel_tag: target for target in wheels.platforms(targets.names())}
    return {tag: (wheels.build_wheel(target, out), target) for tag, target in found.items()}


@pytest.mark.arm
def test_no_instruction_of_a_wheel_outside_the_files_of_its_path(built):
    if not shutil.which("aarch64-linux-gnu-objdump"):
        pytest.skip("needs binutils-aarch64-linux-gnu")
    objects = sorted((ROOT / "build" / "native" / "aarch64-linux-slim" / "obj").rglob("*.o"))
    assert {"neon", "neon_dotprod", "neon_i8mm", "reference"} <= {path.stem for path in objects}
    assert [place for path in objects for place in misplaced(path.stem, instructions(path))] == []


@pytest.fixture
def wheel_of(built):
    return lambda name: built[targets.get(name).wheel_tag][0]


def zig(*command):
    done = subprocess.run([wheels.zig(), *map(str, command)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def native_part(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith((".so", ".dylib"))]
        return archive.read(name)


def test_one_wheel_for_each_platform(built):
    names = sorted(wheel.name.split("-", 2)[2] for wheel, _ in built.values())
    assert names == [
        "py3-none-macosx_11_0_arm64.whl",
        "py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
        "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    ]


def test_wheels_hold_the_same_but_for_the_library(built):
    contents = []
    for wheel, _ in built.values():
        with zipfile.ZipFile(wheel) as archive:
            contents.append({
                name: archive.read(name)
                for name in archive.namelist()
                if not name.endswith((".so", ".dylib", "/WHEEL", "/RECORD"))
            })
    assert contents[0] == contents[1] == contents[2]
    names = set(contents[0])
    assert {"edge_kit/targets/rpi4.py", "edge_kit/export/to_nb.py", "lite_runtime/model.py"} <= names
    assert not any(name.startswith(("edge_kit/packaging", "tests", "benchmarks")) for name in names)


def test_linux_libraries_need_old_glibc_alone(wheel_of):
    for name in ("x86", "arm"):
        found = read_elf(native_part(wheel_of(name)))
        assert found.machine == {"x86": "x86_64", "arm": "aarch64"}[name]
        needed = {library.split(".")[0] for library in found.needed}
        assert needed <= {"libc", "libm", "libpthread", "libdl", "ld-linux-x86-64"}
        assert found.versions and all(version.startswith("GLIBC_2.") for _, version in found.versions)
        assert found.is_stripped and not found.run_paths


@pytest.mark.skipif(not shutil.which("readelf"), reason="no readelf to compare with")
@pytest.mark.parametrize("name", ["x86", "arm"])
def test_elf_is_read_as_readelf_does(name, wheel_of, tmp_path):
    library = tmp_path / "library.so"
    library.write_bytes(native_part(wheel_of(name)))
    found = read_elf(library.read_bytes())

    def lines(option):
        done = subprocess.run(["readelf", "-W", option, library], capture_output=True, text=True, check=True)
        return [line.split() for line in done.stdout.splitlines()]

    needed = [words[-1].strip("[]") for words in lines("-d") if "(NEEDED)" in words]
    assert list(found.needed) == needed
    versions = {words[words.index("Name:") + 1] for words in lines("-V") if "Name:" in words}
    assert {version for _, version in found.versions} == versions
    defined = {
        words[-1]
        for words in lines("--dyn-syms")
        if len(words) == 8 and words[4] in ("GLOBAL", "WEAK") and words[6] != "UND"
    }
    assert found.exported == defined == check.declared_functions()


def test_the_dylib_needs_the_system_alone(wheel_of):
    found = read_macho(native_part(wheel_of("mac")))
    assert found.machine == "aarch64" and found.oldest_macos == (11, 0) and found.is_signed
    assert found.libraries == ("/usr/lib/libSystem.B.dylib",)
    assert found.install_name == "@rpath/libedge_kit.dylib" and not found.run_paths
    assert {name for name in found.exported if "ek_" in name} == {
        f"_{name}" for name in check.declared_functions()
    }
    assert not any(name.startswith("__Z") for name in found.exported)  # no C++, operator new included
    assert "_pthread_create" in found.undefined


def test_another_checkout_gives_the_same_wheel(wheel_of, tmp_path):
    made = (".*", "build", "dist", "models", "*.egg-info", "*.so", "*.nb", "__pycache__")
    shutil.copytree(ROOT, tmp_path / "elsewhere", ignore=shutil.ignore_patterns(*made))
    python("-m", "edge_kit.packaging.wheels", "arm", "--out", tmp_path, cwd=tmp_path / "elsewhere")
    (again,) = tmp_path.glob("*.whl")
    assert again.name == wheel_of("arm").name
    assert again.read_bytes() == wheel_of("arm").read_bytes()


@pytest.mark.parametrize("name", ["x86", "arm"] if platform.system() == "Linux" else ["mac"])
def test_an_installed_wheel_generates_text(name, wheel_of, tiny_nb, native_library):
    target, expected = targets.get(name), trial.checksum(tiny_nb)
    try:
        trial.try_wheel(wheel_of(name), target, tiny_nb, expected)
    except UnsupportedError as error:
        pytest.skip(str(error))
    if trial.is_for_this_machine(target):
        with pytest.raises(EdgeKitError, match=f"other tokens: checksum {expected}, expected 0"):
            trial.try_wheel(wheel_of(name), target, tiny_nb, "0")


def rewritten(wheel: Path, folder: Path, change) -> Path:
    """A copy of the wheel whose files went through change(name, data); None leaves one out."""
    copy = folder / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(copy, "w") as new:
        for name in old.namelist():
            data = change(name, old.read(name))
            if data is not None:
                new.writestr(name, data)
    return copy


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda name, data: data + b"#" if name.endswith("model.py") else data, "RECORD disagrees.*model.py"),
        (lambda name, data: None if name.endswith("/licenses/LICENSE") else data, "lacks the kit's LICENSE"),
        (lambda name, data: None if "libcxx" in name else data, "RECORD disagrees"),
        (lambda name, data: None if b"LLVM Exceptions" in data else data, "lacks the licence of LLVM"),
        (lambda name, data: data.replace(b"2014", b"1") if name.endswith("WHEEL") else data, "its tags are"),
        (lambda name, data: None if name.endswith(".so") else data, "holds 0 native libraries"),
        (lambda name, data: data[:4000] if name.endswith(".so") else data, "damaged ELF file"),
    ],
)
def test_a_wheel_that_breaks_a_rule_is_named(change, message, wheel_of, tmp_path):
    target = targets.get("x86")
    assert check.check_wheel(wheel_of("x86"), target) == []
    problems = check.check_wheel(rewritten(wheel_of("x86"), tmp_path, change), target)
    assert any(re.search(message, problem) for problem in problems), problems


def test_a_wheel_for_another_machine_is_named(wheel_of):
    problems = check.check_wheel(wheel_of("arm"), targets.get("x86"))
    assert any("is called" in problem for problem in problems)
    assert "the library is for aarch64, expected x86_64" in problems
    problems = check.check_library(native_part(wheel_of("mac")), targets.get("arm"))
    assert problems == ["no 64-bit little-endian ELF file"]


def test_a_bad_elf_library_is_named(tmp_path):
    source, library = tmp_path / "bad.c", tmp_path / "bad.so"
    (tmp_path / "other.c").write_text("int other(void) { return 1; }\n")
    source.write_text("int other(void);\nint ek_version(void) { return other(); }\nint stray;\n")
    options = ["-target", "x86_64-linux-gnu.2.34", "-shared", "-fPIC", "-g"]
    zig("cc", *options, tmp_path / "other.c", "-o", tmp_path / "libother.so")
    zig("cc", *options, source, "-L", tmp_path, "-lother", "-Wl,-rpath,/opt", "-o", library)
    problems = "\n".join(check.check_library(library.read_bytes(), targets.get("x86")))
    for message in ("libother.so, expected", "others in /opt", "not stripped", "exports stray", "lacks ek_"):
        assert message in problems, problems


def test_a_young_glibc_is_named(tmp_path):
    source = "#include <unistd.h>\nint ek_new(void) { return gettid(); }\n"  # new in glibc 2.30
    (tmp_path / "new.c").write_text(source)
    options = ["-D_GNU_SOURCE", "-target", "aarch64-linux-gnu.2.34", "-shared", "-fPIC"]
    zig("cc", *options, tmp_path / "new.c", "-o", tmp_path / "new.so")
    problems = "\n".join(check.check_library((tmp_path / "new.so").read_bytes(), targets.get("arm")))
    assert "needs GLIBC_2.30 of libc.so.6, expected GLIBC_2.17 at most" in problems


def test_a_bad_dylib_is_named(tmp_path):
    source = tmp_path / "bad.c"
    source.write_text("int elsewhere(void);\nint ek_version(void) { return elsewhere(); }\nint stray;\n")
    options = ["-target", "aarch64-macos.13.0", "-shared", "-Wl,-install_name,/tmp/bad.dylib"]
    options += ["-Wl,-undefined,dynamic_lookup", "-Wl,-rpath,/opt"]
    zig("cc", *options, source, "-o", tmp_path / "bad.dylib")
    problems = "\n".join(check.check_library((tmp_path / "bad.dylib").read_bytes(), targets.get("mac")))
    for message in (
        "expects _elsewhere from elsewhere",
        "looks for others in /opt",
        "install name is '/tmp/bad.dylib'",
        "needs macOS (13, 0)",
        "exports _stray",
    ):
        assert message in problems, problems
