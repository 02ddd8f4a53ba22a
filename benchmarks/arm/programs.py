"""The programs whose instructions are counted, compiled for aarch64: the kit's linear layer and llama.cpp's.

llama.cpp comes from the source distribution of llama-cpp-python into the work folder, and is built there once
per kernel path with its own release flags. Nothing of it is kept in the repository.
"""

from __future__ import annotations

import functools
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.engines import base, llama_cpp
from lite_runtime import build

_HERE = Path(__file__).resolve().parent
# Kernel path -> what llama.cpp's own release variants for such a CPU are compiled for
# (armv8.0_1, armv8.2_1, apple_m2_m3 in ggml/src/CMakeLists.txt).
LLAMA_ARCH = {
    "neon": "armv8-a",
    "neon-dotprod": "armv8.2-a+dotprod",
    "neon-i8mm": "armv8.6-a+dotprod+i8mm",
}
_CMAKE = ("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=OFF", "-DGGML_OPENMP=OFF")
_CMAKE += ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64")
_CMAKE += tuple(f"-DLLAMA_BUILD_{part}=OFF" for part in ("COMMON", "TESTS", "TOOLS", "EXAMPLES"))
_CMAKE += ("-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF")


class _Kernels(build.Build):
    """The kit's kernels with the flags of the library, in a folder of their own: they need nothing else."""

    def __init__(self, compiler: build.Compiler, folder: Path):
        super().__init__(compiler)
        self.directory = folder

    def objects(self) -> list:
        return self._compile_all(sorted((build.SOURCES / "kernels").glob("*.cc")), build.SOURCES, "obj")


class Programs:
    """Builds into `work` what is not there yet. Raises build.BuildError, or EngineError for llama.cpp."""

    def __init__(self, work: Path):
        self.compiler = build.qemu_compiler()
        self.compiler_version = compiler_version(self.compiler)
        self.work = work
        work.mkdir(parents=True, exist_ok=True)

    def plugin(self) -> Path:
        """The counter as a plugin of the qemu at hand."""
        source, output = _HERE / "instructions.cc", self.work / "instructions.so"
        version = 1 if qemu_version()[0] < 9 else 2  # of the interface; later ones still take 2
        flags = ["-std=c++17", "-O2", "-shared", "-fPIC", f"-DPLUGIN_VERSION={version}"]
        _compile([*_host_compiler(), *flags, str(source)], output)
        return output

    def edge_kit(self) -> Path:
        """The kit's layer. $CXX makes the kernels alone: linking, zig would first build a C++ library."""
        name = self.compiler_version.replace(" ", "-")
        kit = _Kernels(self.compiler, self.work / f"kernels-{name}")
        output = self.work / f"edge_kit_linear-{name}"
        with kit.lock():
            command = [build.QEMU_COMPILER, "-std=c++17", "-O2", "-static", f"-I{build.SOURCES}"]
            _compile([*command, str(_HERE / "edge_kit_linear.cc"), *map(str, kit.objects())], output)
        return output

    def llama_cpp(self, path: str) -> Path:
        """llama.cpp's product for the CPUs of a kernel path."""
        output = self._llama_folder(path) / "llama_linear"
        if output.exists():
            return output
        if not shutil.which("cmake"):
            raise base.EngineError("llama.cpp is built with cmake, which is not here: 'apt install cmake'")
        libraries = self._llama_libraries(path)
        includes = self._llama_source / "ggml" / "include"
        command = [*self.compiler.command, "-std=c++17", "-O2", "-static", f"-I{includes}"]
        command += [str(_HERE / "llama_linear.cc"), "-Wl,--start-group", *map(str, libraries)]
        _compile([*command, "-Wl,--end-group", "-pthread"], output)
        return output

    @functools.cached_property
    def _llama_source(self) -> Path:
        source = llama_cpp.fetch_source(sys.executable, self.work, self.work / "llama_cpp.log")
        return source / "vendor" / "llama.cpp"

    def _llama_folder(self, path: str) -> Path:
        return self.work / f"llama_cpp-{llama_cpp.VERSION}-{path}-{self.compiler_version.replace(' ', '-')}"

    def _llama_libraries(self, path: str) -> list:
        folder, log = self._llama_folder(path), self.work / "llama_cpp.log"
        cxx = self.compiler.command
        if len(cxx) != 1 or "++" not in cxx[0]:
            raise base.EngineError(f"llama.cpp is built by one program, CXX='{shlex.join(cxx)}' is none")
        compilers = [f"-DCMAKE_CXX_COMPILER={cxx[0]}", f"-DCMAKE_C_COMPILER={_c_compiler(cxx[0])}"]
        configure = ["cmake", "-S", self._llama_source, "-B", folder, *_CMAKE, *compilers]
        base.run_tool([*configure, f"-DGGML_CPU_ARM_ARCH={LLAMA_ARCH[path]}"], log)
        base.run_tool(["cmake", "--build", folder, "--target", "ggml"], log)
        return sorted(folder.rglob("libggml*.a"))


def _host_compiler() -> list:
    """For what qemu loads; $CXX is the compiler for ARM."""
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return [found] if found else [sys.executable, "-m", "ziglang", "c++"]


def _c_compiler(cxx: str) -> str:
    return cxx.replace("clang++", "clang").replace("g++", "gcc")


def qemu_version() -> tuple:
    """(major, minor, patch)"""
    text = subprocess.run(["qemu-aarch64", "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.search(r"version (\d+)\.(\d+)\.(\d+)", text).groups()))


def compiler_version(compiler: build.Compiler) -> str:
    """As "gcc 12.2.0" or "clang 18.1.8"."""
    command = [*compiler.command, "-dM", "-E", "-x", "c++", "-"]
    text = subprocess.run(command, input="", capture_output=True, text=True, check=True).stdout
    defined = dict(re.findall(r"#define (__\w+__) (\d+)$", text, re.MULTILINE))
    name, prefix = ("clang", "__clang_") if "__clang_major__" in defined else ("gcc", "__GNUC_")
    if name == "clang":
        return f"clang {'.'.join(defined[f'{prefix}{part}__'] for part in ('major', 'minor', 'patchlevel'))}"
    return f"gcc {'.'.join(defined[part] for part in ('__GNUC__', '__GNUC_MINOR__', '__GNUC_PATCHLEVEL__'))}"


def _compile(command: list, output: Path) -> None:
    done = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True)
    if done.returncode:
        raise build.BuildError(f"{shlex.join(command[:3])} ... cannot make {output}:\n{done.stderr.strip()}")
