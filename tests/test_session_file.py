"""Sessions saved to a file and restored: the answer goes on as if nothing had happened, or it is refused."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

import lite_runtime
from edge_kit.nb.reader import NbFile
from lite_runtime.errors import (
    ContextFullError,
    EdgeKitError,
    FileFormatError,
    MismatchError,
    UsageError,
)

IDS = [(7 * i * i + 3) % 300 for i in range(150)]  # two full blocks of the cache and a part of one
GREEDY = {"temperature": 0, "max_new_tokens": 12}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@pytest.fixture
def saved(tiny, tmp_path):
    path = tmp_path / "saved"
    with tiny.session() as session:
        session.forward(IDS)
        session.save(path)
    return path


def tokens_of(items) -> list:
    return [item.token for item in items]


def python(code: str, *arguments) -> subprocess.Popen:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


_GO_ON = """
import json, sys, lite_runtime
path, saved, kv_dtype, isa = sys.argv[1:]
with lite_runtime.load(path, n_threads=1, isa=isa, kv_dtype=kv_dtype) as model:
    session = model.restore(saved)
    before, items = session.tokens, session.generate([5], temperature=0, max_new_tokens=12)
    print(json.dumps([before, [item.token for item in items]]))
"""


@pytest.mark.parametrize("kv_dtype", ["f16", "int8"])
@pytest.mark.parametrize("name", ["tiny_nb", "demo_nb"])
def test_a_greedy_answer_goes_on(request, native_library, tmp_path, name, kv_dtype):
    path, saved = request.getfixturevalue(name), tmp_path / "saved"
    with lite_runtime.load(path, kv_dtype=kv_dtype) as model, model.session() as session:
        list(session.generate(IDS, **GREEDY))  # leaves hidden drafts behind it
        shown = session.tokens
        session.save(saved)
        restored = model.restore(saved)
        expected = tokens_of(session.generate([5], **GREEDY))
        assert restored.tokens == shown
        assert tokens_of(restored.generate([5], **GREEDY)) == expected
        assert restored.tokens == session.tokens
    done = python(_GO_ON, path, saved, kv_dtype, "scalar" if name == "tiny_nb" else model.info.isa)
    out, problem = done.communicate(timeout=120)
    assert done.returncode == 0, problem
    assert json.loads(out) == [shown, expected]


def test_the_arm_file_of_a_model_takes_it(native_library, export_nb, tiny, saved):
    with lite_runtime.load(export_nb("random:tiny", target="arm")) as arm:
        restored, expected = arm.restore(saved), tiny.restore(saved)
        np.testing.assert_array_equal(restored.forward([1, 2, 3]), expected.forward([1, 2, 3]))


def test_an_empty_session_and_one_that_was_cut(tiny, tmp_path):
    session = tiny.session()
    session.save(tmp_path / "a")
    assert tiny.restore(tmp_path / "a").tokens == []
    session.forward(IDS)
    session.cut(70)
    session.save(tmp_path / "a")
    restored = tiny.restore(os.fsencode(tmp_path / "a"))
    assert restored.tokens == IDS[:70] and len(restored) == 70
    assert np.array_equal(restored.forward([9, 8]), session.forward([9, 8]))
    assert os.listdir(tmp_path) == ["a"]


def test_another_model_mode_or_cache_is_refused(tiny, tiny_nb, export_nb, saved, tmp_path):
    other = shutil.copy(tiny_nb, tmp_path / "other.nb")
    with NbFile(tiny_nb) as file:
        scale = next(name for name in file.tensors if name.endswith("q_proj.scale"))
        at = file.tensors[scale].offset
    with open(other, "r+b") as file:  # as further training may: the last bit of one row's scale
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    for path, options, problem in (
        (other, {}, "another model"),
        (export_nb("random:tiny", quant="fp32"), {}, "another model"),
        (tiny_nb, {"mode": "exact"}, "is open in exact mode"),
        (tiny_nb, {"kv_dtype": "int8"}, "has one of int8: open it with the session's kv_dtype"),
    ):
        with lite_runtime.load(path, **options) as model, pytest.raises(MismatchError, match=problem):
            model.restore(saved)
    with lite_runtime.load(tiny_nb, n_ctx=149) as model:
        with pytest.raises(ContextFullError, match="150 tokens, the limit n_ctx is 149"):
            model.restore(saved)
    with lite_runtime.load(tiny_nb, n_ctx=150) as model:
        assert model.restore(saved).tokens == IDS


def test_files_that_are_no_session(tiny, tiny_nb, saved, tmp_path):
    damaged = bytearray(saved.read_bytes())
    damaged[1000] ^= 4
    (tmp_path / "damaged").write_bytes(damaged)
    os.mkfifo(tmp_path / "fifo")
    for path, error, problem in (
        (tiny_nb, FileFormatError, "not a session file"),
        (tmp_path / "damaged", FileFormatError, "its checksum differs"),
        (tmp_path, EdgeKitError, "it is a folder; expected a session file"),
        (tmp_path / "fifo", EdgeKitError, "it is a device or a pipe"),
        (tmp_path / "none", EdgeKitError, "No such file"),
        ("a\0b", UsageError, "cannot name a file"),
        (7, UsageError, "cannot name a file"),
    ):
        with pytest.raises(error, match=problem):
            tiny.restore(path)


def test_what_cannot_be_written(tiny, tmp_path):
    session = tiny.session()
    session.forward(IDS[:3])
    locked = tmp_path / "locked"
    locked.mkdir()
    (locked / "s").write_bytes(b"old")
    locked.chmod(0o555)
    was_root = os.geteuid() == 0  # whom no mode stops
    try:
        if was_root:
            os.seteuid(65534)
        with pytest.raises(EdgeKitError, match="s: cannot be written: Permission denied"):
            session.save(locked / "s")
    finally:
        if was_root:
            os.seteuid(0)
        locked.chmod(0o755)
    assert os.listdir(locked) == ["s"] and (locked / "s").read_bytes() == b"old"
    for path, error, problem in (
        (tmp_path, EdgeKitError, "it is a folder; give the name of a file"),
        (tmp_path / "no" / "s", EdgeKitError, "No such file or directory"),
        (None, UsageError, "cannot name a file"),
    ):
        with pytest.raises(error, match=problem):
            session.save(path)
    assert session.tokens == IDS[:3]


def test_closed(tiny_nb, native_library, saved):
    model = lite_runtime.load(tiny_nb)
    session = model.session()
    session.close()
    with pytest.raises(UsageError, match="the session is closed"):
        session.save(saved)
    model.close()
    with pytest.raises(UsageError, match="the model is closed"):
        model.restore(saved)
    with pytest.raises(UsageError, match="is closed"):
        session.save(saved)


_SAVE_FOR_EVER = """
import sys, lite_runtime
path, saved = sys.argv[1:]
with lite_runtime.load(path) as model, model.session() as long:
    long.forward([1 + i % 200 for i in range(2000)])
    short = long.fork()
    short.cut(1000)
    while True:
        for session in (long, short):
            session.save(saved)
        print("saved", flush=True)
"""


def test_killed_amid_a_save(tiny, tiny_nb, tmp_path):
    saved = tmp_path / "saved"
    for attempt in range(5):
        process = python(_SAVE_FOR_EVER, tiny_nb, saved)
        try:
            assert process.stdout.readline() == "saved\n", process.communicate()[1]
            time.sleep(random.Random(attempt).uniform(0, 0.05))
        finally:
            process.kill()
            process.communicate()
        with tiny.restore(saved) as session:
            assert len(session) in (1000, 2000) and session.tokens[:3] == [1, 2, 3]
    beside = [name for name in os.listdir(tmp_path) if name != "saved"]
    assert all(name.startswith("saved.") and name.endswith(".tmp") for name in beside), beside
