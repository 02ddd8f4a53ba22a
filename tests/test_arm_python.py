"""The arm64 Python that tests and wheels run on under qemu."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from on_arm import differences

from edge_kit.packaging import arm_python
from lite_runtime.errors import EdgeKitError, UnsupportedError


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """tools(name="shell lines", …): a PATH of these alone."""

    def make(**scripts):
        folder = tmp_path / "tools"
        folder.mkdir()
        for name, lines in scripts.items():
            tool = folder / name.replace("_", "-")
            tool.write_text(f"#!/bin/sh\n{lines}\n")
            tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    return make


def test_missing_tools_are_named(tools, tmp_path):
    tools(apt_get="exit 0")
    with pytest.raises(UnsupportedError, match="needs dpkg-deb and qemu-aarch64: .*apt install qemu-user"):
        arm_python.arm_python(tmp_path / "arm")


def test_a_failed_download_is_shown_and_not_taken_for_a_python(tools, tmp_path):
    tools(apt_get='echo "E: no network"; exit 100', dpkg_deb="exit 0", qemu_aarch64="exit 0")
    for _ in range(2):
        with pytest.raises(EdgeKitError, match="update failed:\nE: no network"):
            arm_python.arm_python(tmp_path / "arm")
    assert not (tmp_path / "arm" / "root").exists()


def test_packages_without_a_python_are_refused(tools, tmp_path):
    tools(apt_get="exit 0", dpkg_deb="exit 0", qemu_aarch64="exit 0")
    with pytest.raises(EdgeKitError, match="holds no Python"):
        arm_python.arm_python(tmp_path / "arm")


@pytest.mark.arm
def test_it_runs_and_starts_itself_again(tools):
    try:
        python = arm_python.arm_python()
    except UnsupportedError as error:
        pytest.skip(str(error))
    code = "import numpy, platform, sys; print(platform.machine(), sys.executable)"
    twice = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {code!r}]))"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for command in (code, twice):
        done = subprocess.run([python, "-c", command], capture_output=True, text=True, env=clean, timeout=120)
        assert done.stdout.split() == ["aarch64", str(python)], done.stderr
    # Once made it is taken as it is.
    tools(apt_get="exit 1", dpkg_deb="exit 1", qemu_aarch64="exit 1")
    assert arm_python.arm_python() == python


def test_dependencies_are_those_of_a_device():
    assert [name.split(">")[0] for name in arm_python.dependencies()] == ["numpy", "tokenizers", "jinja2"]


def test_another_answer_or_path_is_named():
    expected = {"a.nb": {"isa": "avx2", "answers": [{"tokens": [1, 2], "text": "x"}]}}
    found = json.loads(json.dumps(expected).replace("avx2", "neon"))
    assert differences(expected, found, "neon") == []
    assert differences(expected, found, "neon-i8mm") == ["a.nb runs on the path neon, expected neon-i8mm"]
    found["a.nb"]["answers"][0]["tokens"][1] = 3
    (wrong,) = differences(expected, found, "neon")
    assert "answers {'tokens': [1, 3]" in wrong and "expected {'tokens': [1, 2]" in wrong
