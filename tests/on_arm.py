"""Runs the Python package on an arm64 Python under qemu, as each CPU that a kernel path is made for.

Every CPU must choose its own path and give the greedy answers that this machine gives. The last one, which
knows all paths, also runs the tests of the runtime. Exits with 1 if anything fails. Needs the export extra, a
Debian or Ubuntu with g++-aarch64-linux-gnu and qemu-user, and makes the rest itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

from exported import ROOT, export
from r1_tokenizers import fetch_r1_tokenizers

from edge_kit.packaging import arm_python
from lite_runtime import build
from lite_runtime.errors import EdgeKitError

TESTS = Path(__file__).resolve().parent
# What runs on a device. The rest tests the exporter, or the host's compiler.
SUITE = (
    "test_runtime_model.py", "test_runtime_generate.py", "test_runtime_kv.py", "test_text_stream.py",
    "test_text_tokenizer.py", "test_native_tokenizer.py", "test_cli_run.py",
    "test_native_generate.py::test_greedy_text_equals_pythons",
)  # fmt: skip
# A whole text through the demo model; a million characters, which compare tables alone.
TOO_SLOW = ("test_the_int8_cache_alone_costs_next_to_nothing", "every_character")
PYTEST = ("pytest>=7",)


def run(command, **environment) -> str:
    """Standard output; ends the script with what the command said if it fails."""
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=1200,
        env={**os.environ, **environment},
    )  # fmt: skip
    if done.returncode != 0:
        raise EdgeKitError(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def test_packages(python: Path) -> Path:
    """Folder of what the tests need besides the kit's own dependencies."""
    folder = python.parents[2] / "test-packages"
    if not folder.exists():
        partial = folder.with_suffix(".part")
        shutil.rmtree(partial, ignore_errors=True)
        arm_python.install(python.parents[2], PYTEST, partial)
        partial.rename(folder)
    return folder


def differences(expected: dict, found: dict, path: str) -> list:
    """What is wrong with the answers of one CPU, whose kernel path should be `path`."""
    wrong = []
    for model, answers in found.items():
        name = Path(model).name
        if answers["isa"] != path:
            wrong.append(f"{name} runs on the path {answers['isa']}, expected {path}")
        for answer, right in zip_longest(answers["answers"], expected[model]["answers"]):
            if answer != right:
                wrong.append(f"{name} answers {answer}, expected {right}")
    return wrong


def main() -> int:
    try:
        library = build.Build(build.qemu_compiler(), jobs=os.cpu_count() or 1).library()
        build.Build(build.find_compiler()).library()
        python = arm_python.arm_python()
        fetch_r1_tokenizers()  # by pip, which the other Python does not have
        models = [export("random:tiny"), export("random:tiny", "arm"), export("demo")]
        script = [TESTS / "greedy_answers.py", *models]
        here = {"PYTHONPATH": str(ROOT)}
        expected = json.loads(run([sys.executable, *script], **here))
        failed = 0
        for cpu, path in build.QEMU_CPUS.items():
            there = {**here, "QEMU_CPU": cpu, "EDGE_KIT_LIBRARY": str(library)}
            wrong = differences(expected, json.loads(run([python, *script], **there)), path)
            print(f"[{cpu}] Python: {'; '.join(wrong) or f'path {path}, same greedy text'}", flush=True)
            failed += bool(wrong)
        there["PYTHONPATH"] += os.pathsep + str(test_packages(python))
        there["EDGE_KIT_EMULATED"] = "1"
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += [str(TESTS / name) for name in SUITE] + ["-k", f"not {' and not '.join(TOO_SLOW)}"]
        print(f"[{cpu}] tests of the runtime", flush=True)
        failed += subprocess.run(command, cwd=ROOT, env={**os.environ, **there}).returncode != 0
    except (EdgeKitError, build.BuildError, RuntimeError) as error:
        print(f"on_arm: error: {error}", file=sys.stderr)
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
