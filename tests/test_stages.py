"""benchmarks/stages.py: a real run on random:tiny, the arithmetic of its tables, what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

import lite_runtime
from benchmarks import stages, stages_report, stages_steps
from benchmarks.stages_request import STAGES, parse_request
from lite_runtime.errors import UsageError


def test_a_run_on_tiny(tiny_nb, native_library, tmp_path, capsys):
    out, table = tmp_path / "stages.json", tmp_path / "stages.md"
    options = ["--threads", "1", "--repeat", "1", "--new-tokens", "5"]
    options += ["--steps", "paddle-int8,exact,scalar,best"]
    assert stages.main(["--model", str(tiny_nb), *options, "--json", str(out), "--markdown", str(table)]) == 0
    assert capsys.readouterr().out == table.read_text()
    report = json.loads(out.read_text())
    rows = report["request"]["rows"]
    turns = [(row["state"], row["turn"]) for row in rows]
    assert turns == [("cold", 1), ("cold", 2), ("warm", 1), ("warm", 2)]
    for row in rows:
        ms = {name: figure["median"] for name, figure in row["ms"].items()}
        assert all(value > 0 for value in ms.values()) and ms["first_token"] < ms["total"]
        assert sum(ms[stage] for stage in STAGES) == pytest.approx(ms["total"])
        assert sum(row["share"].values()) == pytest.approx(1)
        assert (row["reused_tokens"] > 0) == (row["turn"] == 2)
        assert row["reused_tokens"] < row["prompt_tokens"]
    assert rows[0]["ms"]["encode"]["median"] > rows[2]["ms"]["encode"]["median"]  # the tokenizer was opened
    steps = report["steps"]
    assert [row["step"] for row in steps] == ["paddle-int8", "exact", "scalar", "best"]
    for row in steps:  # the margins of tiny's first tokens are far above what rounding moves
        assert row["prefill_tps"]["median"] > 0 and row["check"] == {"agree": 5, "of": 5, "margin": None}
    gain = steps[3]["decode_tps"]["median"] / steps[2]["decode_tps"]["median"]
    assert steps[3]["gain"] == pytest.approx(gain) and steps[0]["gain"] is None


def test_a_step_that_cannot_run_is_named(tiny_nb, native_library, monkeypatch, capsys):
    monkeypatch.delenv("EDGE_KIT_STOCK_PYTHON", raising=False)
    options = ["--repeat", "1", "--new-tokens", "2", "--steps", "stock,best"]
    assert stages.main(["--model", str(tiny_nb), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("| stock Paddle Lite on the .nb | 1 | skipped: stock Paddle Lite needs a")
    assert "| 2 of 2 |" in lines[-1]


def test_a_step_closes_its_sessions(tiny_nb, native_library):
    with lite_runtime.load(tiny_nb, n_threads=1) as model:
        with stages_steps.LastLogits(model) as session:
            assert session.forward([1, 2]).shape == (1, model.info.n_vocab)
        with pytest.raises(UsageError, match="closed"):
            session.forward([3])


def test_widened_weights_are_those_of_the_file(tiny_nb):
    from benchmarks.nb_checkpoint import open_model
    from edge_kit.nb.reader import NbFile

    checkpoint = open_model(str(tiny_nb))
    original = open_model("random:tiny")
    assert checkpoint.tensor_names == original.tensor_names
    for name in original.tensor_names:  # within half a step of the row's scale, exact where not quantized
        difference = np.abs(checkpoint.tensor(name) - original.tensor(name))
        steps = np.abs(original.tensor(name)).max(axis=-1, keepdims=True) / 127
        quantized = name.endswith("_proj.weight") or "embed" in name or "head" in name
        assert np.all(difference <= (0.501 * steps if quantized else 0)), name
    with NbFile(tiny_nb) as file:
        assert file.tensors["lm_head.weight"].dtype == "int8"


def answers(tokens, margins, seconds):
    return {"tokens": tokens, "margins": margins, "seconds": seconds}


def step(name, *runs, **fields):
    return {"step": name, "name": name, "threads": 1, "engine": "e", "runs": list(runs), **fields}


def test_speeds_gains_and_the_token_check():
    slow = [answers([1, 2, 3], [0.5, 0.25, 2], [4, 1, 1]), answers([1, 2, 3], [0.5, 0.25, 2], [2, 2, 2])]
    fast = [answers([1, 9, 3], [1, 1, 1], [1, 0.25, 0.25])]
    skipped = {"step": "b", "name": "b", "threads": 1, "skipped": "no such\nthing"}
    rows = stages_report.summarize_steps([step("a", *slow), skipped, step("c", *fast)], n_prompt=8)
    assert rows[0]["prefill_tps"] == {"median": 3, "min": 2, "max": 4}
    assert rows[0]["decode_tps"] == {"median": 0.75, "min": 0.5, "max": 1}
    assert (rows[0]["gain"], rows[0]["gain_over_first"]) == (None, 1)
    assert rows[1] == skipped
    assert rows[2]["gain"] == rows[2]["gain_over_first"] == 4 / 0.75  # over a: b did not run
    assert rows[2]["check"] == {"agree": 1, "of": 3, "margin": 0.25}
    shorter = answers([1, 2], [0, 0], [1, 1])  # a slow step made fewer tokens
    assert stages_report.compare_tokens(slow[0], shorter) == {"agree": 2, "of": 2, "margin": None}


def test_shares_are_of_the_medians():
    def turn(parse, model):
        ms = {"parse": parse, "encode": 1, "model": model, "text": 1, "first_token": 3, "total": 20}
        return {"ms": ms, "prompt_tokens": 9, "reused_tokens": 0}

    runs = [
        {"import_ms": 5, "open_ms": n, "cold": [turn(1, 5 + n)], "warm": [turn(2, 4)]} for n in (1, 2, 9)
    ]
    summary = stages_report.summarize_requests(runs)
    assert summary["open_ms"] == {"median": 2, "min": 1, "max": 9}
    assert summary["rows"][0]["share"] == {"parse": 0.1, "encode": 0.1, "model": 0.7, "text": 0.1}
    assert summary["rows"][1]["share"]["model"] == 0.5


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "--model"),
        (["--model", "nowhere.nb"], "nowhere.nb: no such file"),
        (["--model", "random:tinny"], "did you mean 'random:tiny'"),
        (["--model", "demo", "--threads", "0"], "at least 1"),
        (["--model", "demo", "--new-tokens", "1"], "--new-tokens 1, expected at least 2"),
        (["--model", "demo", "--steps", "stok"], "did you mean 'stock'"),
        (["--model", "demo", "--repet", "2"], "did you mean '--repeat'"),
        (["--model", "demo", "--markdown", "/"], "--markdown / is a folder"),
    ],
)
def test_bad_arguments_give_one_message(arguments, said, capsys):
    assert stages.main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and said in shown.err


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"messages": []}', b'{"messages": [{"role": "user"}], "max_tokens": 1}',
     b'{"messages": [{"role": "boss", "content": ""}], "max_tokens": 1}',
     b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}'],
)  # fmt: skip
def test_a_request_that_is_none(body):
    with pytest.raises(UsageError, match="expected|no JSON"):
        parse_request(body)
