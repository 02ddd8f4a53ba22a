"""bench: its figures on real models, its baselines, and the rule by which a later run is judged."""

from __future__ import annotations

import copy
import json
import os
import zlib

import numpy as np
import pytest

import lite_runtime
from edge_kit import baseline, speed
from edge_kit.cli import main
from edge_kit.commands import bench
from lite_runtime import machine
from lite_runtime.errors import UsageError


@pytest.fixture(autouse=True)
def library(native_library):
    return native_library


def run_bench(capsys, *arguments) -> tuple:
    status = main(["bench", *map(str, arguments), "--json"])
    captured = capsys.readouterr()
    assert status in (0, 1), captured.err
    return status, json.loads(captured.out)


def error(capsys, *arguments) -> str:
    assert main(["bench", *map(str, arguments)]) == 2
    return capsys.readouterr().err


SMALL = ("--prompt-tokens", 9, "--new-tokens", 6, "--threads", 1)


def test_reports_its_figures(tiny_nb, capsys):
    status, report = run_bench(capsys, tiny_nb, *SMALL, "--repeat", 2)
    assert status == (1 if "problems" in report else 0)
    for name in (
        "prefill_tps",
        "prefill_peak_share",
        "multiply_peak_gops",
        "decode_tps",
        "load_s",
        "rss_after_load_bytes",
        "rss_decode_bytes",
        "peak_rss_bytes",
        "read_bandwidth_gbs",
        "bandwidth_share",
    ):
        assert report[name] > 0
    with lite_runtime.load(tiny_nb) as model:
        assert (report["threads"], report["context"], report["kernel"]) == (1, 15, model.info.isa)
    assert report["rss_after_load_bytes"] <= report["peak_rss_bytes"]
    assert set(report["before"]) == set(report["after"]) == {"clock_mhz", "temperature_c"}
    low, high = report["ranges"]["decode_tps"]
    assert low <= report["decode_tps"] <= high
    assert report["token_checksum"] == expected_checksum(tiny_nb, 9, 6)
    assert 0 <= report["disturbed_windows"] <= report["windows"] == 2


def expected_checksum(path, n_prompt, n_new) -> str:
    with lite_runtime.load(path) as model, model.session() as session:
        model.__dict__["eos_ids"] = frozenset()
        ids = speed.prompt_ids(n_prompt, model.info.n_vocab)
        tokens = [item.token for item in session.generate(ids, max_new_tokens=n_new, temperature=0)]
    return f"{zlib.crc32(np.array(tokens, np.int32).tobytes()):08x}"


def test_a_share_above_one_is_an_error_of_the_bench():
    good = {"bandwidth_share": 0.97, "token_checksum": "a"}
    assert bench.check([good, good]) == []
    assert "share is 1.020" in bench.check([good, {**good, "bandwidth_share": 1.02}])[0]
    assert "checksum differs" in bench.check([good, {**good, "token_checksum": "b"}])[0]


def test_windows_and_prompt():
    assert speed.window_sizes(64) == [8] * 8
    assert speed.window_sizes(9) == [5, 4]
    assert speed.window_sizes(2) == [2]
    ids = speed.prompt_ids(1000, 331)
    assert min(ids) >= 0 and max(ids) < 331 and len(set(ids)) > 250


def test_warm_up_counts_the_prefill(tiny_nb):
    with lite_runtime.load(tiny_nb) as model:
        one, many = speed.warm_up(model, 1), speed.warm_up(model, 40)
        assert 0.5 < one / model.info.parameter_bytes_per_token < 1  # int8 weights, without scales and norms
        assert 10 * one < many < 40 * one  # the head multiplies one row


class Watch:
    """Stands in for machine.CpuWatch: says what it is told."""

    def __init__(self, shares):
        self._shares = iter(shares)

    def __call__(self):
        return self

    def foreign_share(self):
        return next(self._shares)


# prefill; reading, then window and reading for each of three windows
@pytest.mark.parametrize(
    "shares, disturbed, all_disturbed",
    [
        ([0, 0, 0, 0, 0.3, 0, 0, 0], 1, False),  # second window
        ([0, 0, 0, 0.3, 0, 0.3, 0, 0], 1, False),  # both readings around it
        ([0, 0.3, 0, 0, 0, 0, 0, 0.3], 0, False),  # one reading of two windows each
        ([None] * 8, 0, False),  # the system does not tell
        ([0, 0, 0.06, 0, 0.3, 0, 0.9, 0], 3, True),
    ],
)
def test_disturbed_windows_are_dropped(tiny_nb, monkeypatch, shares, disturbed, all_disturbed):
    monkeypatch.setattr(machine, "CpuWatch", Watch(shares))
    with lite_runtime.load(tiny_nb) as model:
        run = speed.measure(model, 5, 24, multiplications=1)
    assert (run["windows"], run["disturbed_windows"]) == (3, disturbed)
    assert run["decode_disturbed"] == all_disturbed
    assert len(run["window_tps"]) == len(run["window_shares"]) == (3 if all_disturbed else 3 - disturbed)


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="only Linux tells processor time")
def test_cpu_watch_leaves_out_this_process():
    watch, until = machine.CpuWatch(), machine.time.process_time() + 0.3
    while machine.time.process_time() < until:
        pass
    share = watch.foreign_share()
    assert 0 <= share <= 1
    busy, own = machine.time.process_time(), machine.foreign_cpu_seconds()
    assert busy > 0.3 and own > 0


def samples(**values) -> list:
    """Runs with the same figures but for those given, one value per run."""
    base = {"prefill_peak_share": 0.5, "bandwidth_share": 0.9, "load_s": 0.1, "peak_rss_bytes": 2e9}
    count = max((len(row) for row in values.values()), default=3)
    return [{**base, **{name: row[i] for name, row in values.items()}} for i in range(count)]


def verdict(name, before, now) -> str:
    return baseline.judge(name, samples(**{name: before}), samples(**{name: now})).verdict


@pytest.mark.parametrize(
    "name, before, now, expected",
    [
        ("bandwidth_share", [0.90, 0.90, 0.91], [0.89, 0.90, 0.90], "same"),
        ("bandwidth_share", [0.90, 0.90, 0.91], [0.80, 0.81, 0.80], "worse"),
        ("bandwidth_share", [0.80, 0.80, 0.80], [0.90, 0.91, 0.90], "better"),
        ("bandwidth_share", [0.70, 0.90, 0.95], [0.80, 0.75, 0.80], "same"),  # within the spreads
        ("load_s", [0.5, 0.5, 0.5], [0.8, 0.8, 0.8], "worse"),
        ("load_s", [0.01, 0.01, 0.01], [0.03, 0.03, 0.03], "same"),  # three times, but 20 ms
        ("peak_rss_bytes", [2e9] * 3, [2.2e9] * 3, "worse"),
        ("peak_rss_bytes", [2e9] * 3, [1.5e9] * 3, "better"),
    ],
)
def test_rule_on_examples(name, before, now, expected):
    assert verdict(name, before, now) == expected


def test_disturbed_runs_need_a_loss_of_half():
    before, slower = samples(bandwidth_share=[0.9] * 4), samples(bandwidth_share=[0.6] * 4)
    assert baseline.judge("bandwidth_share", before, slower).verdict == "worse"
    for run in slower[1:]:
        run["decode_disturbed"] = True
    judged = baseline.judge("bandwidth_share", before, slower)
    assert judged.disturbed and judged.verdict == "same"
    for run in slower:
        run["bandwidth_share"] = 0.4
    assert baseline.judge("bandwidth_share", before, slower).verdict == "worse"
    slower[1]["decode_disturbed"] = slower[2]["decode_disturbed"] = False  # three clean runs are enough
    slower[3]["bandwidth_share"] = 0.001
    judged = baseline.judge("bandwidth_share", before, slower)
    assert not judged.disturbed and judged.now == 0.4


def test_rule_by_property():
    hypothesis = pytest.importorskip("hypothesis")
    values = hypothesis.strategies.lists(hypothesis.strategies.floats(0.01, 100), min_size=3, max_size=9)
    opposite = {"better": "worse", "worse": "better", "same": "same"}

    @hypothesis.given(values, values, hypothesis.strategies.sampled_from(sorted(baseline.FIGURES)))
    @hypothesis.settings(deadline=None)
    def check(before, now, name):
        assert verdict(name, before, before) == "same"
        assert verdict(name, before, now) == opposite[verdict(name, now, before)]
        judged = baseline.judge(name, samples(**{name: before}), samples(**{name: now}))
        figure = baseline.FIGURES[name]
        if judged.verdict == "worse":  # then the median is, and at least by the least change
            assert (judged.now < judged.baseline) == figure.higher_is_better
            assert judged.ratio < 1 - figure.least_change
        steady_before, steady_now = [before[0]] * 3, [before[0] * (0.5 if figure.higher_is_better else 2)] * 3
        if abs(steady_before[0] - steady_now[0]) > figure.least_amount:
            assert verdict(name, steady_before, steady_now) == "worse"

    check()


def save_on(capsys, model, path, *settings) -> dict:
    """A real baseline. One moment's share above 1, on a machine shared with others, is measured again."""
    for _ in range(3):
        status, report = run_bench(capsys, model, *settings, "--save", path)
        if status == 0:
            return report
    pytest.fail(f"three times: {report['problems']}")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("baselines")


@pytest.fixture
def saved(tiny_nb, scratch, capsys):
    path = scratch / "tiny.json"
    if not path.exists():
        save_on(capsys, tiny_nb, path, *SMALL, "--repeat", 3)
    return path


def test_saved_baseline_holds_all_samples(saved):
    loaded = baseline.load(str(saved))
    assert loaded.settings == {"prompt_tokens": 9, "new_tokens": 6, "threads": 1, "kv_dtype": "f16"}
    assert len(loaded.runs) == 3 and loaded.model["digest"] != "unknown"
    assert all(len(run["window_tps"]) == 1 and run["load_s"] > 0 for run in loaded.runs)
    assert [path.name for path in saved.parent.iterdir()] == ["tiny.json"]


DAMAGES = ["cut", "empty", "other", "version", "runs", "value", "setting", "kv", "no kv", "kv list", "nan"]
DAMAGES += ["huge", "tiny"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_baseline_is_one_message(saved, tmp_path, tiny_nb, capsys, damage):
    text, content = saved.read_text(), json.loads(saved.read_text())
    if damage == "version":
        content["version"] = 2
    if damage == "runs":
        del content["runs"][1:]
    if damage == "value":
        content["runs"][1]["load_s"] = "fast"
    if damage == "nan":
        content["runs"][1]["bandwidth_share"] = float("nan")
    if damage == "huge":
        content["runs"][1]["load_s"] = 10**400
    if damage == "tiny":
        content["runs"][1]["prefill_peak_share"] = 5e-324
    if damage == "setting":
        content["settings"]["threads"] = 0
    if damage == "kv":
        content["settings"]["kv_dtype"] = "f8"
    if damage == "no kv":
        del content["settings"]["kv_dtype"]
    if damage == "kv list":
        content["settings"]["kv_dtype"] = ["f16"]
    texts = {"cut": text[: len(text) // 2], "empty": "", "other": "[1]"}
    path = tmp_path / "damaged.json"
    path.write_text(texts.get(damage, json.dumps(content)))
    message = error(capsys, tiny_nb, "--compare", path)
    assert "damaged.json is no baseline of 'edge-kit bench --save'" in message
    assert message.count("\n") == 1


def test_missing_and_unwritable_files(tiny_nb, tmp_path, capsys):
    assert "No such file" in error(capsys, tiny_nb, "--compare", tmp_path / "none.json")
    assert "is a folder" in error(capsys, tiny_nb, "--save", tmp_path)
    assert "which is no folder" in error(capsys, tiny_nb, "--save", tmp_path / "no" / "x.json")
    assert "at least 3 runs" in error(capsys, tiny_nb, "--save", tmp_path / "x.json", "--repeat", 2)
    assert "not allowed with" in error(capsys, tiny_nb, "--save", "a", "--compare", "b")
    assert list(tmp_path.iterdir()) == []


def test_only_like_is_compared_with_like(saved, tmp_path, tiny_nb, demo_nb, capsys):
    assert "measured with --new-tokens 6, this run has 7: leave --new-tokens out" in error(
        capsys, tiny_nb, "--compare", saved, "--new-tokens", 7
    )
    assert "measured with --kv-dtype f16, this run has int8" in error(
        capsys, tiny_nb, "--compare", saved, "--kv-dtype", "int8"
    )
    assert "the baseline is of name" in error(capsys, demo_nb, "--compare", saved)
    content = json.loads(saved.read_text())
    path = tmp_path / "changed.json"
    path.write_text(json.dumps({**content, "machine": {"cpu": "Z80", "cores": 1}}))
    assert "from another machine (cpu Z80, cores 1)" in error(capsys, tiny_nb, "--compare", path)
    path.write_text(json.dumps({**content, "token_checksum": "00000000"}))
    assert "the same file gives other tokens" in error(capsys, tiny_nb, "--compare", path)


def test_settings_come_from_the_baseline(tiny_nb, tmp_path, capsys):
    path = tmp_path / "int8.json"
    save_on(capsys, tiny_nb, path, *SMALL, "--kv-dtype", "int8", "--repeat", 3)
    _, report = run_bench(capsys, tiny_nb, "--compare", path, "--repeat", 3)
    settings = {"prompt_tokens": 9, "new_tokens": 6, "threads": 1, "kv_dtype": "int8"}
    assert {name: report[name] for name in settings} == settings


def replay(monkeypatch, attempts: list) -> None:
    """speed.measure gives the runs of `attempts`, one list of shares per measurement."""
    shares = iter([share for attempt in attempts for share in attempt])
    measured = speed.measure

    def measure(*arguments):
        share = next(shares)
        run = measured(*arguments)
        return {**run, "bandwidth_share": share, "prefill_peak_share": 0.5, **STEADY}

    monkeypatch.setattr(speed, "measure", measure)


STEADY = {"decode_disturbed": False, "prefill_disturbed": False}


@pytest.mark.parametrize(
    "attempts, status, measurements, word",
    [
        ([[0.9] * 3], 0, 1, "same"),
        ([[0.5] * 3] * 3, 1, 3, "worse"),
        ([[0.5] * 3, [0.9] * 3], 0, 2, "same"),  # the first was a moment of the machine
        ([[2.0] * 3], 0, 1, "better"),
    ],
)
def test_regression_must_show_every_time(
    saved, tmp_path, tiny_nb, monkeypatch, capsys, attempts, status, measurements, word
):
    content = json.loads(saved.read_text())
    for run in content["runs"]:
        run.update(bandwidth_share=0.9, prefill_peak_share=0.5, load_s=100.0, peak_rss_bytes=1e12, **STEADY)
    path = tmp_path / "steady.json"
    path.write_text(json.dumps(content))
    replay(monkeypatch, copy.deepcopy(attempts))
    found, report = run_bench(capsys, tiny_nb, "--compare", path, "--repeat", 3)
    comparison = report["comparison"]
    assert (found, comparison["attempts"]) == (status, measurements)
    assert comparison["verdicts"][1]["verdict"] == word
    assert comparison["regressions"] == (["bandwidth_share"] if status else [])


def test_a_slower_kernel_is_a_regression_and_the_same_is_none(demo_nb, tmp_path, monkeypatch, capsys):
    if len(lite_runtime.available_isas()) == 1:
        pytest.skip("this machine has the scalar path alone")
    path = tmp_path / "demo.json"
    save_on(capsys, demo_nb, path, "--prompt-tokens", 16, "--new-tokens", 4, "--repeat", 3)
    status, report = run_bench(capsys, demo_nb, "--compare", path)
    assert status == 0, report["comparison"]
    monkeypatch.setenv("EDGE_KIT_ISA", "scalar")
    assert main(["bench", str(demo_nb), "--compare", str(path), "--repeat", "3"]) == 1
    text = capsys.readouterr().out
    assert "REGRESSION" in text and "warning    this run takes kernel path scalar" in text
    assert "rule       worse: by more than both spreads" in text


def test_a_baseline_is_read_from_a_file_of_sensible_size_alone(tmp_path, tiny_nb, capsys):
    large = tmp_path / "large.json"
    with open(large, "wb") as file:
        file.truncate(17 << 20)
    assert "no file of at most 16 MB" in error(capsys, tiny_nb, "--compare", large)
    assert "no file of at most 16 MB" in error(capsys, tiny_nb, "--compare", "/dev/zero")


def test_save_refuses_what_is_no_file_and_follows_links(saved, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / ("x" * 300)):
        with pytest.raises(UsageError, match="--save"):
            baseline.require_writable(str(path), "--save")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    baseline.save(str(tmp_path / "link"), baseline.load(str(saved)))
    assert (tmp_path / "link").is_symlink() and baseline.load(str(tmp_path / "target"))
    assert not list(tmp_path.glob("*.part"))
