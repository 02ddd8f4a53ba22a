"""The runtime inside other programs: CMake, pkg-config, C, C++, Java, a clang module; C and C++ on ARM."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import edge_kit
import lite_runtime
from lite_runtime import build

pytestmark = pytest.mark.embedding

PACKAGE = build.PACKAGE
EXAMPLES = PACKAGE / "examples"
QUESTION = "What is the capital of France?"


def run(*command, stdin="", timeout=600, status=0, **environment):
    done = subprocess.run(
        [str(part) for part in command],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=timeout,
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
    )
    assert done.returncode == status, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def need(*tools):
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def cmake(source, out, *options):
    need("cmake")
    run("cmake", "-S", source, "-B", out, f"-Dedge_kit_DIR={PACKAGE / 'cmake'}", *options)
    run("cmake", "--build", out)
    return out


@pytest.fixture(scope="module")
def examples(native_library, tmp_path_factory) -> Path:
    """The built examples."""
    return cmake(EXAMPLES, tmp_path_factory.mktemp("examples"))


@pytest.fixture(scope="module")
def answer(native_library, demo_nb) -> str:
    """What the Python runtime answers."""
    return converse(demo_nb, [QUESTION])[0]


def converse(path, questions) -> list:
    """Answers of the Python runtime to one question after the other."""
    messages, answers = [], []
    with lite_runtime.load(path) as model:
        for question in questions:
            messages.append({"role": "user", "content": question})
            with model.session() as session:
                items = session.generate(model.text.encode_chat(messages))
                answers.append("".join(item.text for item in items))
            messages.append({"role": "assistant", "content": answers[-1]})
    return answers


def test_the_c_example_is_short():
    assert len((EXAMPLES / "ask.c").read_text().splitlines()) < 40


def test_c_answers_like_python(examples, demo_nb, answer):
    assert run(examples / "ask", demo_nb, QUESTION).stdout == answer + "\n"


def test_c_says_what_is_wrong(examples, tiny_nb, tmp_path):
    missing = run(examples / "ask", tmp_path / "none.nb", QUESTION, status=1)
    assert "none.nb" in missing.stderr and len(missing.stderr.splitlines()) == 1
    assert "usage" in run(examples / "ask", status=2).stderr


def test_cpp_converses_like_python_and_computes_only_what_is_new(examples, demo_nb):
    questions = ["Name a colour.", "And another one?"]
    done = run(examples / "chat", demo_nb, stdin="\n".join(questions) + "\n")
    assert done.stdout == "".join(converse(demo_nb, questions))
    known = [int(n) for n in re.findall(r"\[(\d+) of \d+ prompt tokens were known", done.stderr)]
    assert known[0] == 0 and known[1] > 20


def test_pkg_config(native_library, demo_nb, answer, tmp_path):
    need("pkg-config", "cc")
    environment = {"PKG_CONFIG_PATH": PACKAGE / "pkgconfig"}
    flags = run("pkg-config", "--cflags", "--libs", "edge_kit", **environment).stdout.split()
    run("cc", "-std=c99", "-Wall", "-Wextra", "-Werror", EXAMPLES / "ask.c", *flags, "-o", tmp_path / "ask")
    done = run(tmp_path / "ask", demo_nb, QUESTION, LD_LIBRARY_PATH=native_library.parent)
    assert done.stdout == answer + "\n"


def test_one_version_everywhere(tmp_path):
    need("cmake", "pkg-config")
    version = edge_kit.__version__
    said = run("pkg-config", "--modversion", "edge_kit", PKG_CONFIG_PATH=PACKAGE / "pkgconfig").stdout
    assert said.strip() == version
    script = tmp_path / "CMakeLists.txt"
    wanted = {version: True, ".".join(version.split(".")[:2]): True, "99.0": False, "0.0": False, "": True}
    for asked, found in wanted.items():
        script.write_text(
            "cmake_minimum_required(VERSION 3.16)\nproject(version LANGUAGES NONE)\n"
            f"find_package(edge_kit {asked} CONFIG REQUIRED)\n"
        )
        run(
            "cmake", "-S", tmp_path, "-B", tmp_path / "out", f"-Dedge_kit_DIR={PACKAGE / 'cmake'}",
            status=0 if found else 1,
        )  # fmt: skip


def test_cmake_without_a_library_says_what_to_do(tmp_path):
    need("cmake")
    shutil.copytree(PACKAGE / "cmake", tmp_path / "cmake")
    done = run(
        "cmake", "-S", EXAMPLES, "-B", tmp_path / "out", f"-Dedge_kit_DIR={tmp_path / 'cmake'}", status=1
    )
    assert "python -m lite_runtime.build" in " ".join(done.stderr.split())


def test_clang_module(native_library, tmp_path):
    """What Swift's `import EdgeKit` reads."""
    pytest.importorskip("ziglang", reason="needs clang; the ziglang package has one")
    source = tmp_path / "version.c"
    source.write_text(
        "#pragma clang module import EdgeKit\n"
        "int main(void) { return ek_abi_version() == EK_ABI_VERSION ? 0 : 1; }\n"
    )
    run(
        sys.executable, "-m", "ziglang", "cc", "-fmodules", f"-fmodules-cache-path={tmp_path}",
        f"-fmodule-map-file={PACKAGE / 'include' / 'module.modulemap'}", source,
        f"-L{native_library.parent}", "-ledge_kit", "-o", tmp_path / "version",
    )  # fmt: skip
    run(tmp_path / "version", LD_LIBRARY_PATH=native_library.parent)


@pytest.fixture(scope="module")
def java(native_library, tmp_path_factory):
    """Runs a Java program of this test or of the examples on the desktop JVM."""
    need("java", "javac")
    out = cmake(PACKAGE / "java", tmp_path_factory.mktemp("java"))
    jar, here = out / "edge_kit.jar", Path(__file__).parent

    def run_java(source, *arguments, status=0):
        run("javac", "-Xlint:all", "-Werror", "-cp", jar, "-d", out, source)
        return run(
            "java", "-Xcheck:jni", f"-Djava.library.path={out}", "-cp", f"{jar}{os.pathsep}{out}",
            source.stem, *arguments, status=status,
        )  # fmt: skip

    return run_java, EXAMPLES / "Ask.java", here / "java" / "EdgeKitTest.java"


def test_java_answers_like_python(java, demo_nb, answer, tmp_path):
    run_java, ask, _ = java
    assert run_java(ask, demo_nb, QUESTION).stdout == answer + "\n"
    error = run_java(ask, tmp_path / "none.nb", QUESTION, status=1).stderr
    assert "Ask: " in error and "none.nb" in error and "\tat " not in error


def test_java_emoji_ends_cancels_and_closes(java, demo_nb):
    run_java, _, test = java
    assert run_java(test, demo_nb).stdout.splitlines()[-1] == "passed"


@pytest.fixture(scope="module")
def arm_examples(tmp_path_factory) -> Path:
    """The examples and the library, cross-compiled for aarch64 Linux."""
    need("cmake", build.QEMU_COMPILER, "aarch64-linux-gnu-gcc", "qemu-aarch64")
    root = tmp_path_factory.mktemp("arm")
    for part in ("cmake", "include"):
        shutil.copytree(PACKAGE / part, root / part)
    run(sys.executable, PACKAGE / "build.py", "--out", root, CXX=build.QEMU_COMPILER)
    return cmake(
        EXAMPLES, root / "examples", f"-Dedge_kit_DIR={root / 'cmake'}", "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64", "-DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc",
        f"-DCMAKE_CXX_COMPILER={build.QEMU_COMPILER}",
    )  # fmt: skip


@pytest.mark.parametrize("cpu", build.QEMU_CPUS)
def test_c_answers_on_every_arm_path(arm_examples, demo_nb, answer, cpu):
    assert run(*build.qemu_command(cpu), arm_examples / "ask", demo_nb, QUESTION).stdout == answer + "\n"


def test_cpp_answers_on_arm(arm_examples, demo_nb, answer):
    qemu = build.qemu_command(list(build.QEMU_CPUS)[-1])
    assert run(*qemu, arm_examples / "chat", demo_nb, stdin=QUESTION + "\n").stdout == answer
