"""Where an export writes: refused before any work, and nothing half-written stays, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import nb_toy
import pytest

from edge_kit.nb.bundle import read_bundle
from edge_kit.nb.writer import NbWriter
from lite_runtime.errors import UsageError

pytest.importorskip("paddle", reason="export needs paddlepaddle")

from edge_kit.export import pipeline
from edge_kit.export.progress import Progress


def refused(out, monkeypatch) -> str:
    """The message of an export to `out`, which may not even open its checkpoint."""

    def open_checkpoint(_):
        pytest.fail("the checkpoint was opened first")

    monkeypatch.setattr(pipeline, "open_checkpoint", open_checkpoint)
    with pytest.raises(UsageError) as caught:
        pipeline.export_model("demo", "x86", "int8", "builtin", str(out), Progress(quiet=True))
    return str(caught.value)


def test_out_is_checked_before_any_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in ("", ".", str(tmp_path), "missing/tiny.nb"):
        assert f"--out {out}: expected a file name in an existing folder" == refused(out, monkeypatch)
    assert "File name too long" in refused("x" * 300, monkeypatch)
    assert "File name too long" in refused("x" * 250, monkeypatch)  # with what stands beside it while writing
    os.mkfifo("pipe")
    for out in ("pipe", "/dev/null"):
        assert "is a device or a pipe" in refused(out, monkeypatch)
    assert os.listdir() == ["pipe"]


def test_out_in_a_folder_that_takes_no_files(tmp_path, monkeypatch):
    message = refused("/proc/tiny.nb" if os.path.isdir("/proc") else "/dev/fd/tiny.nb", monkeypatch)
    assert "cannot be written" in message


class FullDisk:
    """A file on a disk with room for `left` more bytes."""

    def __init__(self, file, left: int):
        self._file, self._left = file, left

    def write(self, data):
        self._left -= len(data)
        if self._left < 0:
            raise OSError(28, "No space left on device")
        return self._file.write(data)

    def close(self):
        self._file.close()
        if self._left < 0:
            raise OSError(28, "No space left on device")

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.mark.parametrize("left", [0, 100, 2000])
def test_a_full_disk(tmp_path, monkeypatch, left):
    path = tmp_path / "toy.nb"
    path.write_bytes(b"an older file")
    with pytest.raises(UsageError, match="toy.nb: cannot be written: No space left on device"):
        with NbWriter(path, nb_toy.program(), "v2.13-rc") as writer:
            writer._file = FullDisk(writer._file, left)
            for name, array in nb_toy.tensors().items():
                writer.add(name, array.dtype.name, array.shape, array)
            pytest.fail("the toy fits")
    assert [entry.name for entry in tmp_path.iterdir()] == ["toy.nb"]
    assert path.read_bytes() == b"an older file"


# Exports random:tiny, and waits in the middle of writing until a signal comes.
SLOW_EXPORT = """
import sys, time
from edge_kit.cli import main
from edge_kit.nb.writer import NbWriter
add = NbWriter.add
def slow_add(self, *args):
    add(self, *args)
    if len(self._names) == 5:
        self._file.flush()
        time.sleep(60)
NbWriter.add = slow_add
sys.exit(main(["export", "--model", "random:tiny", "--optimizer", "builtin", "--out", sys.argv[1]]))
"""


@pytest.mark.parametrize(
    "number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_while_writing_leaves_nothing(tmp_path, number, status):
    command = [sys.executable, "-c", SLOW_EXPORT, str(tmp_path / "tiny.nb")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size > 5000 for path in tmp_path.glob("*.nb.*.partial")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status and "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_two_exports_to_one_file_stay_apart(tmp_path):
    path = tmp_path / "toy.nb"
    with NbWriter(path, nb_toy.program(), "v2.13-rc", lambda _: {"manifest.json": b"slow"}) as slow:
        nb_toy.write(path, bundle=lambda _: {"manifest.json": b"fast"})
        assert read_bundle(path)["manifest.json"] == b"fast"
        for name, array in nb_toy.tensors().items():
            slow.add(name, array.dtype.name, array.shape, array)
    assert read_bundle(path)["manifest.json"] == b"slow"
    assert [entry.name for entry in tmp_path.iterdir()] == ["toy.nb"]
