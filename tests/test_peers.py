"""The benchmark against other engines, without those: its arithmetic, tables, messages, and one run."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.comparison import (
    chart,
    environments,
    fidelity,
    goals,
    machine_state,
    measure,
    models,
    report,
    rounds,
)
from benchmarks.comparison.figures import Disturbed
from benchmarks.comparison.measure import Turn
from benchmarks.comparison.worker_process import WorkerProcess
from benchmarks.engines import base
from lite_runtime.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent
ALL = ("ctranslate2", "edge-kit", "llama-cpp", "mnn", "onnxruntime", "openvino", "paddle", "stock-lite")
ALL += ("transformers",)


def turn(prefill, decode, **own_goals) -> Turn:
    memory = dict.fromkeys(("VmHWM", "RssAnon", "RssFile"), 2_000_000_000)
    return Turn(
        prefill_tps={32: prefill / 2, 128: prefill, 512: prefill},
        decode_tps={32: decode, 1024: decode - 1},
        bandwidth_share=0.9,
        load_s=0.5,
        first_token_s=1.5,
        memory=memory,
        versions={"x": "1.0"},
        bytes_per_token=1000,
        read_bandwidth=1e10,
        own_goals=own_goals,
        windows=8,
        disturbed=1,
    )


def contestant(name, quant, *turns, threads=2):
    found = rounds.Contestant(base.find(name), quant, ROOT)
    found.turns = {threads: list(turns)}
    found.fidelity = {"top1": 0.953, "tokens": 200, "threshold": 0.9}
    return found


@pytest.fixture
def three_engines():
    kit = contestant(
        "edge-kit", "int8",
        turn(240, 20, bandwidth={"shares": [0.95, 0.91, 0.97]}),
        turn(300, 22, bandwidth={"shares": [0.92]}),
        turn(120, 11, bandwidth={"shares": [0.97]}),
    )
    slower = contestant("ctranslate2", "int8", turn(200, 8), turn(200, 8), turn(100, 4))
    broken = contestant("mnn", "int8", turn(50, 19), None, None)
    broken.errors = ["2 threads: mnn: ended at 'run'"]
    return [kit, slower, broken]


def lines_of(contestants) -> dict:
    lines = goals.judge(rounds.by_threads(contestants, [2], 3))
    return {line["goal"]: line for line in lines}


def test_goals_are_ratios_of_figures_of_the_same_round(three_engines):
    line = lines_of(three_engines)["prefill of 128 against CTranslate2 int8"]
    assert line["values"] == [1.2, 1.5, 1.2]  # the third round was slow for both, and that cancels out
    assert (line["median"], line["min"], line["max"]) == (1.2, 1.2, 1.5)
    assert (line["met"], line["threads"]) == (True, 2)


def test_a_goal_below_its_bound_is_missed(three_engines):
    three_engines[0].turns[2] = [turn(239, 20)] * 3
    three_engines[1].turns[2] = [turn(200, 8)] * 3
    assert lines_of(three_engines)["prefill of 512 against CTranslate2 int8"]["met"] is False


def test_a_goal_takes_only_the_rounds_in_which_both_ran(three_engines):
    assert lines_of(three_engines)["decode against MNN int8"]["values"] == [20 / 19]


def test_a_goal_without_its_peer_is_not_measured(three_engines):
    line = lines_of(three_engines)["decode against llama.cpp Q8_0"]
    assert (line["threads"], line["met"]) == (None, None)


def test_the_best_peer_is_chosen_per_round(three_engines):
    assert lines_of(three_engines)["prefill of 32 against the best peer"]["values"] == [1.2, 1.5, 1.2]


def test_own_shares_and_ratios_are_medians_of_their_samples(three_engines):
    lines = lines_of(three_engines)
    assert lines["decode, share of the read bandwidth"]["values"] == [0.95, 0.92, 0.97]
    shares = {"shares": [0.1, 0.12], "vnni_shares": [0.7, 0.8]}
    speculation = {"repeats": [3.0, 1.4, 2.0], "no_match": [0.99, 0.97]}
    three_engines[0].turns[2] = [turn(240, 20, arithmetic=shares, speculation=speculation)] * 3
    lines = lines_of(three_engines)
    found = {name: (line["median"], line["met"]) for name, line in lines.items() if line["threads"]}
    assert found["prefill of 512, share of the best path's int8 peak"] == (pytest.approx(0.11), False)
    assert found["prefill of 512, share of AVX512-VNNI's peak"] == (0.75, True)
    assert found["speculation, replayed answers that repeat their prompt"] == (2.0, True)
    assert found["speculation where nothing matches"] == (0.98, True)
    samples = {"1": [10.0, 10.0, 20.0], "4": [36.0, 30.0, 80.0], "8": []}
    found = goals.Round({goals.KIT: turn(1, 1, many_sessions=samples)})
    assert goals.own_ratio("many_sessions", "4", "1")(found) == 3.6
    assert goals.own_ratio("many_sessions", "8", "1")(found) is None


def test_a_disturbed_figure_counts_only_where_there_is_no_calm_one(three_engines):
    kit, peer, _ = three_engines
    peer.turns[2][1].prefill_tps[128] = Disturbed(10.0)
    line = lines_of(three_engines)["prefill of 128 against CTranslate2 int8"]
    assert (line["values"], line["disturbed"]) == ([1.2, 1.2], False)
    for turn in kit.turns[2]:
        turn.prefill_tps[128] = Disturbed(200.0)
    line = lines_of(three_engines)["prefill of 128 against CTranslate2 int8"]
    assert (line["values"], line["disturbed"]) == ([1.0, 20.0, 2.0], True)
    text = report.markdown(make_report(three_engines))
    assert "| prefill of 128 against CTranslate2 int8 | 2 | 1.2 × | 2 (1 to 20)* × |" in text
    samples = {"1": [10.0], "4": [40.0], "disturbed": True}
    found = goals.Round({goals.KIT: Turn(own_goals={"many_sessions": samples})})
    assert isinstance(goals.own_ratio("many_sessions", "4", "1")(found), Disturbed)


def make_report(contestants) -> dict:
    return {
        "model": "random:tiny",
        "repeat": 3,
        "machine": {"cpu": "A CPU", "cores": 2},
        "rows": report.rows(contestants),
        "goals": goals.judge(rounds.by_threads(contestants, [2], 3)),
        "skipped": [{"engine": "openvino int8", "reason": "not installed: python benchmarks/peers.py"}],
    }


def test_rows_hold_median_min_and_max(three_engines):
    row = report.rows(three_engines)[0]
    expected = {"median": 240, "min": 120, "max": 300, "values": [240, 300, 120], "disturbed": False}
    assert row["prefill_tps"]["128"] == expected
    assert row["decode_tps"]["1024"]["median"] == 19
    assert (row["engine"], row["quant"], row["threads"]) == ("edge-kit", "int8", 2)
    assert (row["peak_rss_bytes"]["median"], row["windows"], row["disturbed_windows"]) == (2e9, 24, 3)
    json.dumps(row)


def test_an_engine_that_never_ran_is_an_error_row(three_engines):
    three_engines[2].turns = {2: [None, None, None]}
    row = report.rows(three_engines)[2]
    assert row == {"engine": "mnn", "quant": "int8", "threads": 2, "error": "2 threads: mnn: ended at 'run'"}
    assert "failed: 2 threads: mnn: ended at 'run'" in report.markdown(make_report(three_engines))


def test_markdown_shows_every_engine_goal_and_skip(three_engines):
    text = report.markdown(make_report(three_engines))
    assert "| edge-kit int8 | 2 | 120 (60 to 150) | 240 (120 to 300) |" in text
    assert "| prefill of 128 against CTranslate2 int8 | 2 | 1.2 × | 1.2 (1.2 to 1.5) × | met |" in text
    assert "| decode, share of the read bandwidth | 2 | 93% | 95 % (92 to 97) | met |" in text
    assert "| decode against llama.cpp Q8_0 |  | 1.5 × | not measured |  |" in text
    assert "- openvino int8: not installed" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables} == {14, 6}  # 13 and 5 columns


def test_missed_goals_say_by_how_much(three_engines):
    three_engines[0].turns[2] = [turn(240, 9.5)] * 3
    three_engines[2].turns[2] = [turn(50, 19)] * 3
    text = report.markdown(make_report(three_engines))
    assert "| decode against MNN int8 | 2 | 1 × | 0.5 × | missed by 50% |" in text


def test_chart_is_drawn(three_engines, tmp_path):
    pytest.importorskip("matplotlib")
    chart.draw(make_report(three_engines), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


class Calm:
    """Stands for ForeignLoad: others were busy in `busy` seconds of the clock."""

    def __init__(self, busy=()):
        self.busy = busy

    def disturbed(self, began, ended):
        return any(began < second < ended for second in self.busy)


def test_disturbed_windows_are_dropped_where_calm_ones_remain():
    run = {"began": 100.0, "seconds": [1.0] + [0.1] * 8 + [0.2] * 8 + [0.4] * 8}
    windows = measure._decode_windows(run)
    assert [tokens for tokens, _, _ in windows] == [8, 8, 8]
    assert [round(began, 6) for _, began, _ in windows] == [101.0, 101.8, 103.4]
    found = Turn()
    assert measure._median(found, windows, Calm(busy=[104.0])) == pytest.approx(7.5)
    assert (found.windows, found.disturbed) == (3, 1)
    none_calm = measure._median(Turn(), windows, Calm(busy=[101.1, 102.0, 104.0]))
    assert none_calm == pytest.approx(5) and isinstance(none_calm, Disturbed)


def test_foreign_load_counts_a_busy_neighbour():
    idle = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with machine_state.ForeignLoad(idle.pid) as others:
            began = machine_state.time.perf_counter()
            machine_state.time.sleep(1)
            ended = machine_state.time.perf_counter()
        assert others.disturbed(began, ended)
    finally:
        for process in (idle, busy):
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--model is missing"),
        (["--model", "demo", "--engines", "edge-kit,mmn"], "did you mean 'mnn'?"),
        (["--model", "demo", "--engines", "mnn:int2"], "mnn can be timed at int8, int4 or all"),
        (["--model", "demo", "--engines", "mnn,mnn:int8"], "stands there twice"),
        (["--model", "demo", "--threads", "0"], "--threads 0, expected different counts from 1"),
        (["--model", "demo", "--threads", "2,2"], "--threads 2,2, expected different counts"),
        (["--model", "demo", "--repeat", "none"], "'none', expected an integer"),
        (["--model", "demo", "--json", "/no/folder/x.json"], "--json /no/folder/x.json lies in /no/folder"),
        (["--model", "demo", "--thread", "2"], "unknown option --thread; did you mean '--threads'?"),
        (["--install", "lama-cpp"], "did you mean 'llama-cpp'?"),
    ],
)
def test_bad_arguments_are_one_message(arguments, message):
    with pytest.raises(UsageError) as caught:
        peers.parse_arguments(arguments)
    assert message in str(caught.value)


def test_engines_are_named_with_or_without_their_quantization():
    found = peers.chosen("edge-kit,llama.cpp:all,mnn:int4")
    keys = [(engine.name, quant) for engine, quant in found]
    assert keys == [("edge-kit", "int8"), ("llama-cpp", "q8_0"), ("llama-cpp", "q4_0"), ("mnn", "int4")]


@pytest.mark.parametrize("name", ALL)
def test_every_engine_says_what_it_needs(name):
    engine = base.find(name)
    assert engine.quants and all(engine.bits(quant) in (4, 8, 16, 32) for quant in engine.quants)
    pinned = [text for text in engine.requirements if "==" in text]
    assert engine.python is None or pinned


def test_there_is_no_engine_without_a_test():
    assert base.names() == sorted(ALL)


def test_an_engine_that_is_not_installed_is_a_skip_with_its_command(tmp_path):
    reason = environments.skip_reason(base.find("mnn"), tmp_path)
    assert reason == f"not installed: python benchmarks/peers.py --install mnn --work {tmp_path}"
    assert environments.skip_reason(base.find("edge-kit"), tmp_path) is None


def test_an_environment_with_other_requirements_is_a_skip(tmp_path):
    folder = environments.folder_of(base.find("mnn"), tmp_path)
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "venv" / "bin" / "python").touch()
    (folder / "installed.json").write_text('["3.11", "MNN==1.0"]')
    assert "other requirements" in environments.skip_reason(base.find("mnn"), tmp_path)


def test_another_library_or_build_is_measured_anew(tmp_path, monkeypatch):
    kit, llama_cpp = base.find("edge-kit"), base.find("llama-cpp")
    keys = set()
    for content in (b"one", b"two", b"one"):
        (tmp_path / "library").write_bytes(content)
        monkeypatch.setenv("EDGE_KIT_LIBRARY", str(tmp_path / "library"))
        keys.add(fidelity.key(kit, "int8"))
    assert len(keys) == 2
    before = fidelity.key(llama_cpp, "q8_0"), environments._wanted(llama_cpp)
    monkeypatch.setattr("benchmarks.engines.llama_cpp._AMX_WHOLE_CALL", "another repair")
    assert fidelity.key(llama_cpp, "q8_0") != before[0] and environments._wanted(llama_cpp) != before[1]


def test_too_little_disk_is_one_message(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "DISK_BYTES", 10**18)
    with pytest.raises(UsageError, match="a comparison needs .* GB: free some, or choose another disk"):
        models.require_disk(tmp_path)


def test_thresholds_of_the_fidelity_check():
    assert (fidelity.threshold(8), fidelity.threshold(16), fidelity.threshold(4)) == (0.9, 0.9, 0.75)


def remembered(folder, top1):
    """A work folder that has seen MNN agree so often."""
    mnn = base.find("mnn")
    known = {"top1": top1, "tokens": 576, "reference": "transformers fp32", "threshold": 0.9}
    (folder / "fidelity.json").write_text(json.dumps({fidelity.key(mnn, "int8"): known}))
    return fidelity.Fidelity(folder).check(mnn, "int8")


def test_an_unfaithful_engine_is_marked_and_a_broken_one_left_out(tmp_path):
    assert report._agreement(remembered(tmp_path, 0.861)) == "86.1% (below 90%)"
    assert report._agreement(remembered(tmp_path, 0.95)) == "95.0%"
    both = {"top1": 0.861, "threshold": 0.9, "exact_top1": 0.939}
    assert report._agreement(both) == "86.1% (below 90%; its weights: 93.9%)"
    with pytest.raises(base.EngineError, match="agreement with fp32 is 40.0%.*expected at least 75%"):
        remembered(tmp_path, 0.4)


def test_speculation_that_changes_tokens_is_no_figure(tiny_nb, native_library, monkeypatch):
    from benchmarks import speculation
    from benchmarks.engines import own_goals
    from lite_runtime import load

    compare = speculation.compare
    monkeypatch.setattr(speculation, "compare", lambda *asked: {**compare(*asked), "same_tokens": False})
    with load(tiny_nb, n_threads=1) as model, pytest.raises(ValueError, match="changes what a session"):
        own_goals.speculation(model, new_tokens=4, turns=1)


def edge_kit_worker(folder, log) -> WorkerProcess:
    return WorkerProcess(base.find("edge-kit"), sys.executable, folder, "int8", 1, log)


def test_an_engine_that_fails_says_why_and_goes_on(tmp_path, native_library):
    with edge_kit_worker(tmp_path / "none", tmp_path / "log") as worker:
        for _ in range(2):
            with pytest.raises(base.EngineError, match="edge-kit: 'load' failed: .*none/model.nb"):
                worker.ask(60, "load")


def test_an_engine_that_dies_or_hangs_is_an_engine_error(tmp_path):
    with edge_kit_worker(tmp_path, tmp_path / "log") as worker:
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(base.EngineError, match="ended at 'load': signal SIGKILL"):
            worker.ask(60, "load")
    with edge_kit_worker(tmp_path, tmp_path / "log") as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        with pytest.raises(base.EngineError, match="no answer to 'load' within 0 s"):
            worker.ask(0.2, "load")


def test_a_tool_that_fails_leaves_the_end_of_its_log(tmp_path):
    command = [sys.executable, "-c", "print('first'); raise SystemExit('no such layer')"]
    with pytest.raises(base.EngineError, match="exit code 1; .*tool.log ends with: .*no such layer"):
        base.run_tool(command, tmp_path / "tool.log")
    with pytest.raises(base.EngineError, match="not done after 0 s"):
        base.run_tool([sys.executable, "-c", "input()"], tmp_path / "tool.log", timeout=0.01)


def test_one_run_of_this_kit_alone(tmp_path, native_library):
    pytest.importorskip("paddle", reason="export needs paddlepaddle")
    work = tmp_path / "work"
    work.mkdir()
    known = {"top1": 0.95, "tokens": 200, "reference": "edge-kit fp32", "threshold": 0.9}
    key = fidelity.key(base.find("edge-kit"), "int8")
    (work / "fidelity.json").write_text(json.dumps({key: known}))  # the check itself takes minutes
    command = [sys.executable, "benchmarks/peers.py", "--model", "random:tiny", "--engines", "edge-kit,mnn"]
    command += ["--threads", "1", "--repeat", "1", "--work", work, "--json", tmp_path / "out.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    (row,) = result["rows"]
    assert set(row["prefill_tps"]) == {"32", "128", "512"} and set(row["decode_tps"]) == {"32", "1024"}
    for figure in row["prefill_tps"].values():
        assert 0 < figure["min"] <= figure["median"] <= figure["max"]
    assert row["bytes_per_token"] > 0 and row["load_s"]["median"] < row["first_token_s"]["median"]
    assert row["fidelity"]["top1"] == 0.95
    assert [skip["engine"] for skip in result["skipped"]] == ["mnn int8"]
    assert "--install mnn" in result["skipped"][0]["reason"]
    (own_goals,) = row["own_goals"]
    assert own_goals["many_sessions"]["rows_equal"]
    assert {name: len(own_goals["speculation"][name]) for name in ("repeats", "no_match")} == {
        "repeats": 6, "no_match": 2
    }
    by_isa = result["int8_peak_gops"]["1"]
    assert len(own_goals["arithmetic"]["vnni_shares"]) == (2 if "avx512-vnni" in by_isa else 0)
    assert "| edge-kit int8 | 1 |" in done.stdout
    left = sorted(str(path.relative_to(work)) for path in work.rglob("*") if path.is_file())
    assert left == ["edge_kit/random-tiny-int8.log", "edge_kit/worker.log", "fidelity.json"]


def test_a_model_is_kept_under_a_name_of_its_own(tmp_path, monkeypatch):
    for folder in ("a", "b"):
        (tmp_path / folder / "sub").mkdir(parents=True)
        (tmp_path / folder / "m.nb").write_bytes(folder.encode())
    files = [str(tmp_path / folder / "m.nb") for folder in ("a", "b")]
    assert len({models.Models(file, tmp_path).hf_folder for file in files}) == 2
    monkeypatch.chdir(tmp_path / "a" / "sub")
    assert models.Models("..", tmp_path).hf_folder.parent == tmp_path / "hf"
    assert models.Models("..", tmp_path).hf_folder.name.startswith("a-")
    for missing in ("", str(tmp_path / "none.nb")):
        with pytest.raises(UsageError, match="does not exist"):
            models.Models(missing, tmp_path)


@pytest.mark.parametrize("text", ["", "0", "1,1", "1,01", "2000", "9" * 5000, "1,x"])
def test_thread_counts_are_different_and_sensible(text):
    with pytest.raises(UsageError, match="--threads"):
        peers.thread_counts(text)
    assert peers.thread_counts("2,1") == [1, 2]


def test_rounds_change_who_follows_whom(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(rounds, "_turn", lambda who, count, *_: order.append((who.quant, count)))
    monkeypatch.setattr(rounds.Contestant, "key", property(lambda self: ("engine", self.quant)))
    contestants = [rounds.Contestant(None, quant, tmp_path) for quant in "abc"]
    rounds.run_rounds(contestants, [1, 2], 2, 10, None, tmp_path, lambda text: None)
    assert order[6:] == order[:6][::-1] and len(set(order[:6])) == 6
