"""benchmarks/turns.py on small models: its counts, its check of logits, its messages."""

from __future__ import annotations

import json

import pytest

from benchmarks import turns
from lite_runtime.session import Session


def report_of(path, tmp_path, capsys) -> dict:
    out = tmp_path / "turns.json"
    assert turns.main(["--model", str(path), "--history", "400", "--repeat", "2", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert capsys.readouterr().out == turns.markdown(report)
    for row in report["rows"]:
        assert row["logits_equal"] and 0 < row["new_tokens"] < row["prompt_tokens"]
        assert row["warm_ms"]["min"] > 0 and row["cold_ms"]["min"] > 0
    return report


def test_without_thinking(tiny_nb, native_library, tmp_path, capsys):
    report = report_of(tiny_nb, tmp_path, capsys)
    left, idle = report["rows"]
    assert not report["thinking_dropped"] and left["prompt_tokens"] > 400
    # What a random model says is no text that the tokenizer would split alike: its answer is new.
    assert 300 < left["prompt_tokens"] - left["new_tokens"] and idle["new_tokens"] < 80


def test_dropped_thinking_makes_the_answer_new_until_idle_time(r1_nb, native_library, tmp_path, capsys):
    report = report_of(r1_nb, tmp_path, capsys)
    left, idle = report["rows"]
    assert report["thinking_dropped"]
    assert left["new_tokens"] > 60 > 40 >= idle["new_tokens"]


def test_other_logits_are_seen(tiny_nb, native_library, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Session, "reuse", lambda session, ids: min(len(session), len(ids) - 1))
    assert turns.main(["--model", str(tiny_nb), "--history", "400", "--repeat", "1"]) == 0
    assert "DIFFERENT" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "--model"),
        (["--model", "nowhere.nb"], "nowhere.nb"),
        (["--model", "x.nb", "--history", "100"], "--history 100, expected at least 192"),
        (["--model", "x.nb", "--json", "/"], "--json / is a folder"),
    ],
)
def test_bad_arguments_give_one_message(arguments, said, capsys):
    assert turns.main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and said in shown.err
