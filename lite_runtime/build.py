"""Builds the native core with the machine's C++ compiler: `python -m lite_runtime.build`.

Needs nothing but Python and a compiler: $CXX, else c++, g++ or clang++, else the `ziglang` wheel. Objects and
test programs go to build/native/<variant>/, the library to lite_runtime/ (sanitized and cross-compiled ones
to build/, unless --out says otherwise). What is up to date is not built again.
"""
from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
SOURCES = PACKAGE / "src"
TESTS = ROOT / "tests" / "native"
ISA_FLAGS = SOURCES / "kernels" / "flags.txt"

COMMON_FLAGS = [
    "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-pthread",
    # Results are promised bit for bit: no fused or reordered floating point behind the source's back.
    "-ffp-contract=off", "-fno-fast-math", "-Wall", "-Wextra",
]

# CPU of qemu-aarch64 -> the kernel path that it must choose: Raspberry Pi 4, Raspberry Pi 5, and a newer one.
QEMU_CPUS = {"cortex-a72": "neon", "cortex-a76": "neon-dotprod", "max,sve=off": "neon-i8mm"}
QEMU_COMPILER = "aarch64-linux-gnu-g++"
# What each of these CPUs runs; the first one runs the other tests too, which never look at the path.
PATH_TESTS = ("kernels_test", "attention_test", "engine_test", "bandwidth_test")


class BuildError(Exception):
    """The build cannot go on; the text says what to do."""


class Compiler:
    """A C++ compiler command, and what it compiles for."""

    def __init__(self, command: list[str]):
        self.is_zig = "ziglang" in command or Path(command[0]).name.startswith("zig")
        if self.is_zig and "-target" not in command:
            command = command + ["-target", _zig_target()]
        self.command = command
        try:
            done = subprocess.run(command + ["-dumpmachine"], capture_output=True, text=True)
        except OSError as error:
            raise BuildError(f"the C++ compiler '{shlex.join(command)}' cannot be started: {error}") from None
        # zig answers with its native machine, so there the target that was asked for counts.
        triple = command[command.index("-target") + 1] if self.is_zig else done.stdout.strip()
        if not triple:
            raise BuildError(f"'{shlex.join(command)} -dumpmachine' names no machine: is it GCC or Clang?\n"
                             + done.stderr.strip())
        self.triple = triple
        self.arch = {"arm64": "aarch64", "amd64": "x86_64"}.get(triple.split("-")[0], triple.split("-")[0])
        self.is_macos = "darwin" in triple or "macos" in triple

    @property
    def is_native(self) -> bool:
        """Whether what it builds runs in the Python at hand."""
        return self.arch == host_arch() and self.is_macos == (sys.platform == "darwin")

    @property
    def library_name(self) -> str:
        return "libedge_kit.dylib" if self.is_macos else "libedge_kit.so"

    def base_flags(self) -> list[str]:
        """The oldest CPU that a build must run on; faster paths are chosen at run time."""
        if self.is_zig or self.is_macos:
            return []
        return {"x86_64": ["-march=x86-64"], "aarch64": ["-march=armv8-a"]}.get(self.arch, [])

    def isa_flags(self) -> dict[str, list[str]]:
        """What each kernel file is compiled with besides, as this compiler spells it."""
        flags = read_isa_flags(self.arch)
        if self.is_zig:
            flags = {name: [zig_flag(flag, self.is_macos) for flag in own] for name, own in flags.items()}
            for own in flags.values():
                if "-mavx512f" in own:  # its oldest CPU has no 512-bit registers
                    own.append("-mevex512")
        return flags

    def static_runtime_flags(self) -> list[str]:
        """Links GCC's own libraries in where their archives are there, so that the .so needs libc only."""
        if self.is_zig or self.is_macos:
            return []
        query = self.command + ["-print-file-name=libstdc++.a"]
        archive = subprocess.run(query, capture_output=True, text=True).stdout.strip()
        return ["-static-libgcc", "-static-libstdc++"] if os.path.isabs(archive) else []


def host_arch() -> str:
    machine = platform.machine().lower()
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(machine, machine)


def _zig_target() -> str:
    # An explicit target makes zig compile for the baseline CPU and an old libc instead of this machine's.
    return f"{host_arch()}-macos.11.0" if sys.platform == "darwin" else f"{host_arch()}-linux-gnu.2.17"


def zig_flag(flag: str, is_macos: bool) -> str:
    """A flag of flags.txt as zig takes it: a CPU and its features, no version of the architecture.

    The CPU is the oldest of the platform, whose features <arm_neon.h> counts on.
    """
    return re.sub(r"^-march=armv[0-9.]+-a", "-mcpu=apple_m1" if is_macos else "-mcpu=generic", flag)


def find_compiler() -> Compiler:
    if os.environ.get("CXX"):
        return Compiler(shlex.split(os.environ["CXX"]))
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return Compiler([name])
    if importlib.util.find_spec("ziglang"):
        return Compiler([sys.executable, "-m", "ziglang", "c++"])
    raise BuildError("no C++ compiler found (tried $CXX, c++, g++, clang++ and the ziglang wheel). "
                     "Install one: 'apt install g++' (Debian, Ubuntu), 'dnf install gcc-c++' (Fedora), "
                     "'xcode-select --install' (macOS), or anywhere 'pip install ziglang'")


def read_isa_flags(arch: str) -> dict[str, list[str]]:
    """File name under src/kernels -> its own compiler flags, for one architecture."""
    flags: dict[str, list[str]] = {}
    if ISA_FLAGS.exists():
        for line in ISA_FLAGS.read_text().splitlines():
            words = line.split("#")[0].split()
            if len(words) > 2 and words[1] in (arch, "any"):
                flags[words[0]] = words[2:]
    return flags


def _newest(paths) -> float:
    return max((p.stat().st_mtime if p.exists() else float("inf") for p in paths), default=0.0)


def _dependencies(depfile: Path) -> list[Path]:
    if not depfile.exists():
        return []
    text = depfile.read_text().replace("\\\n", " ").split(":", 1)[-1].replace("\\ ", "\0")
    return [Path(name.replace("\0", " ")) for name in text.split()]


def _produce(output: Path, inputs: list[Path], command: list[str], note: Path) -> None:
    """Runs `command -o output` unless output is newer than its inputs and `note` holds the same command.

    The output appears whole or not at all.
    """
    command_text = shlex.join(command + ["-o", str(output)])
    if (output.exists() and note.exists() and note.read_text() == command_text
            and _newest(inputs) < output.stat().st_mtime):
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f"{output.name}.{os.getpid()}.part")
    started = time.time()
    done = subprocess.run(command + ["-o", str(partial)], capture_output=True, text=True)
    if done.returncode != 0:
        partial.unlink(missing_ok=True)
        raise BuildError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}\nbuilding {output.name} failed")
    sys.stderr.write(done.stderr)
    os.utime(partial, (started, started))  # a source saved while the compiler ran counts as newer
    os.replace(partial, output)
    note.write_text(command_text)


class Build:
    """One variant (release, debug, sanitized) for one compiler; `slim` makes a release for other machines."""

    def __init__(self, compiler: Compiler, debug: bool = False, sanitize: str = "", jobs: int = 2,
                 slim: bool = False):
        self.compiler = compiler
        self.sanitize = sanitize
        self.slim = slim
        self.jobs = jobs
        self.variant = sanitize.replace(",", "-") or ("debug" if debug else "release")
        if slim:
            self.variant = "slim"
        if slim or not compiler.is_native:
            self.variant = f"{compiler.arch}-{'macos' if compiler.is_macos else 'linux'}-{self.variant}"
        self.directory = ROOT / "build" / "native" / self.variant
        is_release = not (debug or sanitize)
        self.flags = COMMON_FLAGS + compiler.base_flags() + (["-O3"] if is_release else ["-O1", "-g"])
        if sanitize:
            self.flags += [f"-fsanitize={sanitize}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
        self.isa_flags = compiler.isa_flags()
        if not is_release:  # the sanitizers' code at -O3 takes the compiler 10 minutes for one kernel file
            for name, flags in self.isa_flags.items():
                self.isa_flags[name] = [flag for flag in flags if not flag.startswith("-O")]
        self.version_flag = f'-DEK_VERSION="{read_version()}"'
        if slim:  # kernel files have an -O3 of their own
            self.flags[self.flags.index("-O3")] = "-O2"
            self.flags += ["-g0", "-ffunction-sections", "-fdata-sections", f"-ffile-prefix-map={ROOT}=."]
        if slim and compiler.is_zig and compiler.is_macos:  # see src/api/new_delete.cc
            self.flags.append("-fvisibility-global-new-delete=force-hidden")

    def default_out(self) -> Path:
        return PACKAGE if self.variant == "release" else self.directory

    @contextlib.contextmanager
    def lock(self):
        """One build of a variant at a time: objects are shared by whoever works in this checkout."""
        import fcntl

        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / "lock", "w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _compile(self, source: Path, top: Path, folder: str) -> Path:
        output = self.directory / folder / source.relative_to(top).with_suffix(".o")
        depfile = output.with_suffix(".d")
        isa = self.isa_flags.get(source.name, []) if source.parent == SOURCES / "kernels" else []
        includes = [f"-I{PACKAGE / 'include'}", f"-I{SOURCES}"]
        if top == TESTS:
            includes.append(f"-I{TESTS}")
        depfile.parent.mkdir(parents=True, exist_ok=True)
        command = (self.compiler.command + self.flags + isa + includes
                   + [self.version_flag, "-MMD", "-MF", str(depfile), "-c", str(source)])
        _produce(output, [source] + _dependencies(depfile), command, output.with_suffix(".cmd"))
        return output

    def _compile_all(self, sources: list[Path], top: Path, folder: str) -> list[Path]:
        with ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(lambda source: self._compile(source, top, folder), sources))

    def objects(self) -> list[Path]:
        sources = sorted(SOURCES.rglob("*.cc"))
        if not sources:
            raise BuildError(f"no native sources under {SOURCES}: an installed wheel brings the library "
                             "ready-made, building needs a checkout or the sdist")
        return self._compile_all(sources, SOURCES, "obj")

    def _link_flags(self) -> list[str]:
        flags = ["-pthread"] + ([f"-fsanitize={self.sanitize}"] if self.sanitize else [])
        return flags if self.sanitize else flags + self.compiler.static_runtime_flags()

    def _export_flags(self) -> tuple[list[str], list[Path]]:
        """Only the C API leaves the library, whatever the standard library's headers mark as visible."""
        if self.compiler.is_macos:
            flags = ["-dynamiclib", f"-Wl,-install_name,@rpath/{self.compiler.library_name}"]
            if self.compiler.is_zig:  # its linker knows no export list; hidden visibility has to do
                return flags, []
            exports, text = self.directory / "exports.txt", "_ek_*\n"
            flags.append(f"-Wl,-exported_symbols_list,{exports}")
        else:
            exports, text = self.directory / "exports.map", "{ global: ek_*; local: *; };\n"
            flags = ["-shared", f"-Wl,-soname,{self.compiler.library_name}",
                     f"-Wl,--version-script={exports}", "-Wl,-z,defs"]
            if self.sanitize:
                flags.remove("-Wl,-z,defs")  # the sanitizer's runtime comes with the program
        if not exports.exists() or exports.read_text() != text:
            exports.write_text(text)
        return flags, [exports]

    def _slim_flags(self) -> list[str]:
        """Leaves out what nothing calls and what only a debugger reads; a signed dylib is not stripped."""
        if not self.slim:
            return []
        flags = ["-O2"] if self.compiler.is_zig else []  # or zig links a libc++ that is not optimized
        return flags if self.compiler.is_macos else flags + ["-Wl,--gc-sections", "-s"]

    def library(self, out: Path | None = None) -> Path:
        with self.lock():
            objects = self.objects()
            flags, extra = self._export_flags()
            library = (out or self.default_out()) / self.compiler.library_name
            command = self.compiler.command + [str(o) for o in objects] + flags + self._link_flags()
            command += self._slim_flags()
            _produce(library, objects + extra, command, self.directory / "library.cmd")
            return library

    def tests(self, only: list[str] | None = None) -> list[Path]:
        """Builds each tests/native/*_test.cc and fuzz_*.cc, or those called `only`, into its own program."""
        with self.lock():
            objects = self.objects()
            sources = sorted(TESTS.glob("*_test.cc")) + sorted(TESTS.glob("fuzz_*.cc"))
            if only:
                unknown = set(only) - {source.stem for source in sources}
                if unknown:
                    raise BuildError(f"tests/native has no {', '.join(sorted(unknown))}")
                sources = [source for source in sources if source.stem in only]
            programs = []
            for test in self._compile_all(sources, TESTS, "test-obj"):
                program = self.directory / "tests" / test.stem
                command = self.compiler.command + [str(test)] + [str(o) for o in objects] + self._link_flags()
                _produce(program, [test] + objects, command, test.with_suffix(".link.cmd"))
                programs.append(program)
            return programs

    def can_sanitize(self) -> bool:
        """Whether the compiler brings the sanitizers of this variant (true without any)."""
        probe = self.directory / "sanitizer-probe"
        self.directory.mkdir(parents=True, exist_ok=True)
        command = self.compiler.command + self.flags + ["-x", "c++", "-", "-o", str(probe)]
        return subprocess.run(command, input="int main() {}", capture_output=True, text=True).returncode == 0

    def run_tests(self, only: list[str] | None = None, qemu: bool = False) -> int:
        """Runs the *_test programs, or those called `only`, one after the other; returns how many failed.

        Where the compiler lacks the sanitizers they are skipped by name, or have failed if CI is set.
        With `qemu`, all as the first of QEMU_CPUS and PATH_TESTS as each.
        """
        if not self.can_sanitize():
            compiler = shlex.join(self.compiler.command)
            print(f"[{self.variant}] SKIPPED: {compiler} has no -fsanitize={self.sanitize}")
            return 1 if os.environ.get("CI") else 0
        programs = [p for p in self.tests(only) if p.name.endswith("_test")]
        if not qemu:
            return self._run_all(programs, _sanitizer_prefix(self.sanitize), {}, self.variant)
        failed = 0
        for cpu, path in QEMU_CPUS.items():
            environment = {"EDGE_KIT_EXPECTED_PATH": path, "EDGE_KIT_EMULATED": "1"}
            failed += self._run_all(programs, qemu_command(cpu), environment, cpu)
            programs = [program for program in programs if program.name in PATH_TESTS]
        return failed

    def _run_all(self, programs: list[Path], prefix: list[str], environment: dict, where: str) -> int:
        failed = 0
        for program in programs:
            print(f"[{where}] {program.name}", flush=True)
            try:
                done = subprocess.run(prefix + [str(program)], cwd=ROOT, timeout=600,
                                      env={**os.environ, **environment})
                result = f"exit status {done.returncode}" if done.returncode else ""
            except subprocess.TimeoutExpired:
                result = "no end after 600 s"
            if result:
                print(f"[{where}] {program.name} FAILED: {result}", flush=True)
                failed += 1
        passed = len(programs) - failed
        print(f"[{where}] {passed} of {len(programs)} native test programs passed", flush=True)
        return failed


def _sanitizer_prefix(sanitize: str) -> list[str]:
    # The thread sanitizers of older compilers die on kernels that randomize more address bits than they know.
    if "thread" in sanitize and shutil.which("setarch"):
        if subprocess.run(["setarch", "-R", "true"], capture_output=True).returncode == 0:
            return ["setarch", "-R"]
    return []


def qemu_command(cpu: str) -> list[str]:
    """What stands before a program of QEMU_COMPILER to run it as one of QEMU_CPUS."""
    return ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-cpu", cpu]


def qemu_compiler() -> Compiler:
    """$CXX or GCC for aarch64 Linux, where what it builds can be run with qemu."""
    command = shlex.split(os.environ.get("CXX") or QEMU_COMPILER)
    missing = [name for name in (command[0], "qemu-aarch64") if not shutil.which(name)]
    if missing:
        raise BuildError(f"tests under qemu need {' and '.join(missing)}. Install them: "
                         "'apt install g++-aarch64-linux-gnu qemu-user' (Debian, Ubuntu)")
    compiler = Compiler(command)
    if compiler.arch != "aarch64" or compiler.is_macos:
        raise BuildError(f"tests under qemu need a compiler for aarch64 Linux, CXX='{shlex.join(command)}' "
                         f"compiles for {compiler.triple}: unset CXX, or set it to {QEMU_COMPILER}")
    return compiler


def read_version() -> str:
    """The kit's version, which stands in edge_kit/__init__.py alone."""
    init = ROOT / "edge_kit" / "__init__.py"
    if init.exists():
        for line in init.read_text().splitlines():
            if line.startswith("__version__"):
                return line.split("=")[1].strip().strip("\"'")
    return "unknown"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lite_runtime.build", description=__doc__.split("\n")[0])
    parser.add_argument("action", nargs="?", choices=["build", "run-tests"], default="build")
    parser.add_argument("only", nargs="*", metavar="TEST", help="of run-tests: these alone")
    parser.add_argument("--debug", action="store_true", help="-O1 -g in place of -O3")
    parser.add_argument("--sanitize", default="", metavar="LIST", help="address,undefined or thread")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the library goes")
    parser.add_argument("--tests", action="store_true", help="build tests/native too")
    parser.add_argument("--qemu", action="store_true",
                        help="of run-tests: build for aarch64 and run as the CPU of each ARM kernel path")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
    options = parser.parse_args(arguments)
    try:
        compiler = qemu_compiler() if options.qemu else find_compiler()
        build = Build(compiler, options.debug, options.sanitize, options.jobs)
        if options.action == "run-tests":
            return 1 if build.run_tests(options.only, options.qemu) else 0
        print(build.library(options.out))
        for program in build.tests() if options.tests else []:
            print(program)
    except BuildError as error:
        print(f"edge-kit build: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
