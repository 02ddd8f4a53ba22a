"""Packaging: where the packages lie, and the native library in a wheel. The rest is in pyproject.toml."""
from __future__ import annotations

import importlib.util
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
        native.Build(native.find_compiler()).library(out)


class OneWheelPerPlatform(bdist_wheel):
    """The library has a C interface: one wheel serves every Python of a platform."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class NativeDistribution(Distribution):
    def has_ext_modules(self):
        return True


def packages() -> tuple[list[str], dict[str, str]]:
    """Packages and their folders: `export/` and `targets/` are installed inside `edge_kit`."""
    names = find_packages(include=["edge_kit", "edge_kit.*", "lite_runtime", "lite_runtime.*"])
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
    package_data={"lite_runtime": ["include/*.h"], "edge_kit.evaldata": ["*.txt", "SOURCES.md"]},
    setup_requires=build_requirements(),
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": OneWheelPerPlatform},
    distclass=NativeDistribution,
)
