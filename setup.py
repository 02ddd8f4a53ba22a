"""Packaging: where the packages lie, and the native library in a wheel. The rest is in pyproject.toml."""
from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ROOT = Path(__file__).resolve().parent


def load_native_build():
    # By path: importing the package would need what it depends on, which a build does not install.
    spec = importlib.util.spec_from_file_location("native_build", ROOT / "lite_runtime" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


native = load_native_build()

# Set where a wheel is built for other machines (edge_kit/packaging/wheels.py): its platform tags.
WHEEL_PLATFORM = os.environ.get("EDGE_KIT_WHEEL_PLATFORM")


def build_requirements() -> list[str]:
    """A compiler from PyPI where the machine has none."""
    try:
        native.find_compiler()
        return []
    except native.BuildError:
        return ["ziglang"]


class BuildWithLibrary(build_py):
    """Puts the native library into the wheel, or for an editable install beside its sources."""

    def run(self):
        super().run()
        out = None if self.editable_mode else Path(self.build_lib) / "lite_runtime"
        native.Build(native.find_compiler(), slim=bool(WHEEL_PLATFORM)).library(out)


class OneWheelPerPlatform(bdist_wheel):
    """The library has a C interface: one wheel serves every Python of a platform."""

    def get_tag(self):
        return "py3", "none", WHEEL_PLATFORM or super().get_tag()[2]

    def write_wheelfile(self, wheelfile_base, *args, **kwargs):
        super().write_wheelfile(wheelfile_base, *args, **kwargs)
        for name, source in licences_linked_in(native.find_compiler()).items():
            folder = Path(wheelfile_base) / "licenses" / name
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / source.name)


def licences_linked_in(compiler) -> dict[str, Path]:
    """Licences of what zig links into the library. GCC's libstdc++ asks for none of what GCC compiled."""
    if not compiler.is_zig:
        return {}
    zig = compiler.command[: compiler.command.index("c++")]
    said = subprocess.run(zig + ["env"], capture_output=True, text=True, check=True).stdout
    folder = Path(re.search(r'lib_dir"?\s*[:=]\s*"([^"]+)"', said).group(1))
    found = {name: folder / name / "LICENSE.TXT" for name in ("libcxx", "libcxxabi", "libunwind")}
    return {"zig": folder.parent / "LICENSE", **found}


class NativeDistribution(Distribution):
    def has_ext_modules(self):
        return True


def packages() -> tuple[list[str], dict[str, str]]:
    """Packages and their folders: `export/` and `targets/` are installed inside `edge_kit`."""
    names = find_packages(
        include=["edge_kit", "edge_kit.*", "lite_runtime", "lite_runtime.*"],
        exclude=["edge_kit.packaging"],  # works on a checkout
    )
    folders = {}
    for inner in ("export", "targets"):
        for name in [inner] + [f"{inner}.{sub}" for sub in find_packages(inner)]:
            names.append(f"edge_kit.{name}")
            folders[f"edge_kit.{name}"] = name.replace(".", "/")
    # The text that `edge-kit verify` compares over; a checkout keeps it with the tests.
    names.append("edge_kit.evaldata")
    folders["edge_kit.evaldata"] = "tests/data"
    return names, folders


names, folders = packages()
setup(
    packages=names,
    package_dir=folders,
    package_data={
        "lite_runtime": ["include/*", "cmake/*", "pkgconfig/*"],
        "edge_kit.evaldata": ["*.txt", "SOURCES.md"],
        "edge_kit.server.web": ["*.html", "*.css", "*.js", "*.svg", "vendor/**"],
    },
    setup_requires=build_requirements(),
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": OneWheelPerPlatform},
    distclass=NativeDistribution,
)
