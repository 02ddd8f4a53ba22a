"""lite_runtime.load, Model.forward and sessions, on random:tiny."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

import lite_runtime
from edge_kit.nb.bundle import write_bundle
from edge_kit.nb.reader import NbFile
from lite_runtime import machine
from lite_runtime.errors import (
    CancelledError,
    ContextFullError,
    EdgeKitError,
    FileFormatError,
    MemoryLimitError,
    UsageError,
)

IDS = [(7 * i * i + 3) % 300 for i in range(150)]  # crosses two blocks of the cache


@pytest.fixture(scope="module")
def bare_nb(tiny_nb, tmp_path_factory):
    """The same model as paddle_lite_opt would leave it: nothing behind the last tensor."""
    path = tmp_path_factory.mktemp("bare") / "bare.nb"
    shutil.copy(tiny_nb, path)
    with NbFile(path) as file:
        end = file.params_end
    os.truncate(path, end)
    return path


def test_forward_returns_what_was_asked_for(tiny):
    a, b, c = tiny.session(), tiny.session(), tiny.session()
    last, every, none = tiny.forward(
        [(a, IDS[:5], "last"), (b, np.array(IDS[:5]), "all"), (c, IDS[:3], "none")]
    )
    assert last.shape == (tiny.info.n_vocab,) and every.shape == (5, tiny.info.n_vocab) and none is None
    assert last.dtype == every.dtype == np.float32
    assert np.array_equal(every[-1], last)
    assert (len(a), len(b), len(c)) == (5, 5, 3) and c.tokens == IDS[:3]
    kept = every.copy()
    tiny.forward([(a, IDS[5:], "all"), (b, IDS[5:], "all")])
    assert np.array_equal(every, kept)  # the caller's own, not a buffer that the next call fills


def test_chunks_and_neighbours_change_no_bit(tiny):
    (whole,) = tiny.forward([(tiny.session(), IDS, "all")])
    session, other = tiny.session(), tiny.session()
    rows = []
    for start in range(0, len(IDS), 7):
        logits, _ = tiny.forward([(session, IDS[start : start + 7], "all"), (other, [start % 300], "last")])
        rows.append(logits)
    assert np.array_equal(np.concatenate(rows), whole)


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 149, 150])
def test_cut_equals_a_cold_start(tiny, n):
    session, cold = tiny.session(), tiny.session()
    tiny.forward([(session, IDS, "none")])
    session.cut(n)
    assert len(session) == n and session.tokens == IDS[:n]
    rest = [5, 6, 7]
    (warm,) = tiny.forward([(session, rest, "all")])
    (fresh,) = tiny.forward([(cold, IDS[:n] + rest, "all")])
    assert np.array_equal(warm, fresh[n:])


def test_fork_goes_its_own_way(tiny):
    session = tiny.session()
    tiny.forward([(session, IDS[:100], "none")])
    fork = session.fork()
    assert fork.tokens == session.tokens
    a, b = tiny.forward([(session, [1], "last"), (fork, [2], "last")])
    assert not np.array_equal(a, b)
    session.close()
    (after,) = tiny.forward([(fork, [3], "last")])
    (cold,) = tiny.forward([(tiny.session(), IDS[:100] + [2, 3], "last")])
    assert np.array_equal(after, cold)


def test_what_forward_refuses(tiny, tiny_nb):
    session, n_vocab = tiny.session(), tiny.info.n_vocab
    cases = [
        ([(session, [], "last")], "no token ids"),
        (None, "expected segments"),
        ([3], "expected segments"),
        ([(session, [1])], "expected segments"),
        ([(None, [1], "last")], "None in a segment, expected a session"),
        ([(session, [1], ["last"])], "expected one of none, last, all"),
        ([(session, [1.5], "last")], "type float64"),
        ([(session, "hi", "last")], "expected one or more integers"),
        ([(session, [[1], [2, 3]], "last")], "no row of integers"),
        ([(session, [1, n_vocab], "last")], f"token id {n_vocab} at index 1, expected 0 to {n_vocab - 1}"),
        ([(session, [-1], "last")], "token id -1"),
        ([(session, [2**40], "last")], f"token id {2**40}"),
        ([(session, [1], "first")], "logits 'first', expected one of none, last, all"),
        ([(session, [1], "last"), (session, [2], "last")], "each session once"),
        ([], "at least one segment"),
    ]
    for segments, message in cases:
        with pytest.raises(UsageError, match=message):
            tiny.forward(segments)
    with lite_runtime.load(tiny_nb) as other, pytest.raises(UsageError, match="another model"):
        tiny.forward([(other.session(), [1], "last")])
    for n in (1, -1, 10**30, 0.0, "0", None):
        with pytest.raises(UsageError, match="cut: n .*, expected a whole number from 0 to 0"):
            session.cut(n)
    assert len(session) == 0


def test_what_load_refuses(native_library, tiny_nb, tmp_path):
    for options, message in [
        ({"mode": "fp16"}, "mode 'fp16', expected one of int8, exact"),
        ({"mode": ["int8"]}, "expected one of int8, exact"),
        ({"isa": 3}, "isa 3, expected a name"),
        ({"n_threads": 0}, "n_threads 0, expected a whole number from 1"),
        ({"n_threads": "2"}, "n_threads '2', expected a whole number"),
        ({"n_threads": 1.5}, "n_threads 1.5"),
        ({"n_threads": True}, "n_threads True"),
        ({"n_threads": 10**20}, "n_threads 1000"),
        ({"n_ctx": -5}, "n_ctx -5"),
        ({"isa": "sse9"}, "sse9 is not a kernel path"),
    ]:
        with pytest.raises(UsageError, match=message):
            lite_runtime.load(tiny_nb, **options)
    for path in (None, 3, [], f"{tiny_nb}\0.nb", "\ud800"):
        with pytest.raises(UsageError, match="cannot name a file"):
            lite_runtime.load(path)
    lite_runtime.load(os.fsencode(tiny_nb)).close()
    with pytest.raises(EdgeKitError, match="No such file"):
        lite_runtime.load(tmp_path / "none.nb")
    with pytest.raises(EdgeKitError, match="folder"):
        lite_runtime.load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(EdgeKitError, match="a device or a pipe"):
            lite_runtime.load(path)
    cut = tmp_path / "cut.nb"
    cut.write_bytes(tiny_nb.read_bytes()[:100_000])
    with pytest.raises(FileFormatError, match="cut.nb"):
        lite_runtime.load(cut)


@pytest.mark.parametrize(
    "config, manifest, expected",
    [(None, None, 32768), (131072, None, 32768), (None, 512, 512), (0, 512, 512), (True, 9, 9)],
)
def test_default_context_is_the_models_own_up_to_32768(config, manifest, expected, bare_nb, tmp_path):
    path = tmp_path / "model.nb"
    shutil.copy(bare_nb, path)
    limits = {"config.json": config, "manifest.json": manifest}
    files = {name: {"max_position_embeddings": limit} for name, limit in limits.items()}
    write_bundle(path, {name: json.dumps(content).encode() for name, content in files.items()})
    with lite_runtime.load(path) as model:
        assert model.info.n_ctx == expected


def test_context_full_names_both_numbers_and_changes_nothing(tiny_nb):
    with lite_runtime.load(tiny_nb, n_ctx=10) as model:
        session = model.session()
        model.forward([(session, IDS[:8], "none")])
        with pytest.raises(ContextFullError, match="need 11, the limit n_ctx is 10"):
            model.forward([(session, [1, 2, 3], "last")])
        assert len(session) == 8
        model.forward([(session, [1, 2], "last")])


def test_too_little_memory_is_said_before_loading(tiny_nb, monkeypatch):
    size = tiny_nb.stat().st_size
    monkeypatch.setattr(machine, "available_memory", lambda: size - 1)
    with pytest.raises(MemoryLimitError, match=rf"\({size} bytes\).*\({size - 1} bytes\)"):
        lite_runtime.load(tiny_nb)
    monkeypatch.setattr(machine, "available_memory", lambda: size + 10_000)
    with lite_runtime.load(tiny_nb) as model:
        needed = size + 1000 * model.info.kv_bytes_per_token
    with pytest.raises(MemoryLimitError, match=rf"n_ctx 1000 needs .*\({needed} bytes\)"):
        lite_runtime.load(tiny_nb, n_ctx=1000)


def test_closed_things_say_so(tiny_nb):
    model = lite_runtime.load(tiny_nb)
    session, other = model.session(), model.session()
    session.close()
    session.close()
    session.cancel()
    with pytest.raises(UsageError, match="session is closed"):
        model.forward([(session, [1], "last")])
    model.close()
    model.close()
    for call in (model.session, model.read_bandwidth, lambda: model.forward([(other, [1], "last")])):
        with pytest.raises(UsageError, match="model is closed"):
            call()
    with pytest.raises(UsageError, match="session is closed"):
        other.cut(0)


def test_garbage_collection_in_any_order(tiny_nb):
    for _ in range(20):
        model = lite_runtime.load(tiny_nb)
        session = model.session()
        model.forward([(session, [1, 2], "last")])
        model.cycle = session  # collected together, in an order of Python's choosing
        del model, session
        gc.collect()


def test_cancel_ends_a_running_forward(tiny_nb):
    with lite_runtime.load(tiny_nb, n_ctx=100_000) as model:
        session = model.session()
        timer = threading.Timer(0.05, session.cancel)
        timer.start()
        with pytest.raises(CancelledError):
            model.forward([(session, IDS * 600, "none")])
        timer.join()
        assert len(session) == 0
        model.forward([(session, IDS, "none")])


def test_close_during_a_forward_ends_it(tiny_nb):
    for _ in range(5):
        model = lite_runtime.load(tiny_nb, n_ctx=100_000)
        started, errors = threading.Event(), []

        def work(model=model, started=started, errors=errors):
            try:
                session = model.session()
                started.set()
                while True:
                    model.forward([(session, IDS * 100, "none")])
            except EdgeKitError as ended:
                errors.append(ended)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        started.wait()
        model.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert len(errors) == 3
        assert all(isinstance(error, (CancelledError, UsageError, ContextFullError)) for error in errors)


def test_a_session_on_several_threads(tiny):
    """Forwards and cuts amid a generation: its sampling reads no memory that they gave back."""
    session, errors, done = tiny.session(), [], threading.Event()

    def disturb(seed):
        rng = random.Random(seed)
        while not done.is_set():
            with contextlib.suppress(UsageError, ContextFullError):  # other threads cut and append too
                session.forward([rng.randrange(300) for _ in range(rng.randrange(1, 40))])
                session.cut(rng.randrange(len(session) + 1) % 200)

    def generate():
        try:
            for _ in range(40):
                with contextlib.suppress(ContextFullError):
                    list(session.generate([1, 2, 3], max_new_tokens=20, repetition_penalty=1.1))
        except UsageError as error:
            errors.append(str(error))

    disturbing = [threading.Thread(target=disturb, args=(i,)) for i in range(3)]
    generating = [threading.Thread(target=generate) for _ in range(2)]
    for thread in disturbing + generating:
        thread.start()
    for thread in generating:
        thread.join(60)
    done.set()
    for thread in disturbing:
        thread.join(60)
    assert not any(thread.is_alive() for thread in disturbing + generating)
    assert errors == []


def test_sessions_on_several_threads(tiny):
    expected = [tiny.forward([(tiny.session(), IDS[i : i + 40], "last")])[0] for i in range(4)]
    results = [None] * 4

    def work(i):
        session = tiny.session()
        for start in range(i, i + 40, 5):
            (results[i],) = tiny.forward([(session, IDS[start : start + 5], "last")])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(result, one) for result, one in zip(results, expected))


def run_python(code: str, **environment) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


_TRY = """
from lite_runtime import _native
from lite_runtime.errors import UnsupportedError
try:
    _native.library()
except UnsupportedError as error:
    print(error)
"""


def test_library_that_is_missing_or_for_another_machine(tmp_path):
    missing = tmp_path / "none.so"
    assert "none.so is missing: build it with 'python -m lite_runtime.build'" in run_python(
        _TRY, EDGE_KIT_LIBRARY=str(missing)
    )
    foreign = tmp_path / "foreign.so"
    foreign.write_bytes(
        b"\x7fELF\x02\x01\x01" + bytes(9) + (3).to_bytes(2, "little") + (243).to_bytes(2, "little")
    )
    assert "is built for riscv64, this Python runs on" in run_python(_TRY, EDGE_KIT_LIBRARY=str(foreign))
    text = tmp_path / "text.so"
    text.write_text("no library")
    assert "cannot be loaded" in run_python(_TRY, EDGE_KIT_LIBRARY=str(text))


def test_importing_is_light():
    heavy = ("tokenizers", "jinja2", "paddle", "edge_kit")
    code = f"import lite_runtime, sys; print([name for name in {heavy} if name in sys.modules])"
    assert run_python(code) == "[]"


def test_a_file_without_a_bundle_runs_on_ids_alone(tiny, bare_nb):
    with lite_runtime.load(bare_nb) as model:
        with model.session() as session:
            items = list(session.generate(IDS[:9], max_new_tokens=5))
        with tiny.session() as session:
            expected = [item.token for item in session.generate(IDS[:9], max_new_tokens=5)]
        assert [item.token for item in items] == expected
        assert all(item.text == "" for item in items)
        with pytest.raises(FileFormatError, match="no tokenizer.json"):
            model.session().generate("text")
        with pytest.raises(FileFormatError, match="no tokenizer.json"):
            model.session().generate([1], stop="x")
