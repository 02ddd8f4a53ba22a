"""benchmarks/serving.py on a small scale, and how it judges."""

from __future__ import annotations

import json

import pytest

from benchmarks import serving, serving_report

pytest.importorskip("fastapi", reason="needs the serve extra")


def run(tokens_per_s=100.0, gap=50.0, first=200.0, latency=400.0, busy=0.8) -> dict:
    return {
        "tokens_per_s": tokens_per_s,
        "gap_ms": {"p50": gap, "p95": gap},
        "first_token_ms": {"p95": first},
        "request_ms": {"mean": latency, "p95": latency},
        "busy": busy,
    }


def together(many: dict, peer=None, equal=True) -> list:
    rounds = {"one": [run(20.0)] * 3, "many": [many] * 3}
    rounds.update({"llama_many": [peer] * 3} if peer else {})
    found = {
        "rounds": rounds,
        "clients": 8,
        "checksums_equal": equal,
        "peer_missing": None if peer else "why",
    }
    return [goal["met"] for goal in serving_report.together_goals(found)]


def test_goals_of_clients_that_start_together():
    assert together(run(80.0, gap=125.0)) == [True, True, True, None, None]
    assert together(run(79.9, gap=125.1), equal=False) == [False, False, False, None, None]
    assert together(run(), run(99.0, first=201.0))[3:] == [True, True]
    assert together(run(), run(100.0, first=200.0))[3:] == [False, False]


@pytest.mark.parametrize(
    "latency, busy, met", [(312, 0.8, True), (313, 0.8, False), (100, 0.5, None), (100, 0.9, None)]
)
def test_the_goal_of_random_arrivals(latency, busy, met):
    rounds = {"unbatched": [run(busy=busy)] * 3, "batched": [run(latency=latency)] * 3}
    found = {"rounds": rounds, "rate": 5.0, "checksums_equal": True}
    assert [goal["met"] for goal in serving_report.poisson_goals(found, serving.BUSY)] == [met, True]


def test_it_measures_real_servers(native_library, demo_nb, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(serving, "TOGETHER", {"prompt_tokens": 20, "new_tokens": 8})
    monkeypatch.setattr(serving, "POISSON", {"prompt_tokens": 16, "new_tokens": 4})
    path = tmp_path / "serving.json"
    options = ["--flagship", demo_nb, "--demo", demo_nb, "--clients", 3, "--repeat", 1, "--seconds", 2]
    assert serving.main([*map(str, options), "--work", str(tmp_path), "--json", str(path)]) == 0
    report, printed = json.loads(path.read_text()), capsys.readouterr().out
    assert [len(runs) for runs in report["together"]["rounds"].values()] == [1, 1]
    assert report["together"]["rounds"]["many"][0]["new_tokens"] == 24
    assert report["together"]["peer_missing"].startswith("not built: ")
    assert report["together"]["checksums_equal"] and report["poisson"]["checksums_equal"]
    for goal in report["goals"]:
        assert goal["goal"] in printed
    assert "not measured: not built: python benchmarks/serving.py --install" in printed


@pytest.mark.parametrize(
    "options, text",
    [
        ([], "nothing to measure"),
        (["--demo", "no.nb"], "no.nb is not a file"),
        (["--repeet", "3"], "--repeat"),
    ],
)
def test_wrong_options(options, text, capsys):
    assert serving.main(options) == 2 and text in capsys.readouterr().err
