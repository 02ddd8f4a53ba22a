"""profile: parts that make up the whole, what they count, and what is said of them."""

from __future__ import annotations

import builtins
import json

import pytest

import lite_runtime
from edge_kit import profile
from edge_kit.cli import main

LINEARS = {"q_proj + k_proj + v_proj", "o_proj", "gate_proj + up_proj", "down_proj", "lm_head"}
NATIVE_KINDS = {"embedding", "norm", "quantization", "rope", "cache", "attention", "activation", "add"}


@pytest.fixture(autouse=True)
def library(native_library):
    return native_library


@pytest.fixture(scope="module")
def demo_phases(native_library, demo_nb):
    with lite_runtime.load(demo_nb) as model:
        return profile.profile(model, 48, 8), model.info


def parts_of(phase, kind) -> dict:
    return {part.name: part for part in phase.parts if part.kind == kind}


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_parts_are_the_whole(demo_phases, name):
    phase = demo_phases[0][name]
    total = sum(part.seconds for part in phase.parts)
    assert 0.95 * phase.seconds <= total <= 1.001 * phase.seconds
    assert set(parts_of(phase, "linear")) == LINEARS
    assert {part.kind for part in phase.parts} >= NATIVE_KINDS | {"tokenizer", "calls", "other"}
    assert ("sampling" in {part.kind for part in phase.parts}) == (name == "decode")
    assert [part.seconds for part in phase.parts] == sorted((p.seconds for p in phase.parts), reverse=True)


def test_native_steps_are_most_of_the_calls(demo_phases):
    phase = demo_phases[0]["decode"]
    native = sum(part.seconds for part in phase.parts if part.kind in NATIVE_KINDS | {"linear", "other"})
    assert native > 0.5 * phase.seconds  # else "calls" would hide what the runtime did not note


def test_bytes_and_operations_are_the_models(demo_phases):
    phases, info = demo_phases
    decode = phases["decode"]
    weights = sum(p.bytes for p in decode.parts if p.kind in ("linear", "norm", "embedding"))
    assert weights == 8 * info.parameter_bytes_per_token
    cache = parts_of(decode, "attention")["attention"]
    assert cache.calls == 8 * info.n_layers
    assert cache.bytes == sum(range(49, 57)) * info.kv_bytes_per_token
    head = parts_of(phases["prefill"], "linear")["lm_head"]
    assert head.operations == info.n_vocab * info.hidden_size  # only the last row goes through it
    assert parts_of(decode, "linear")["lm_head"].operations == 8 * head.operations
    gate = parts_of(decode, "linear")["gate_proj + up_proj"]
    rates = gate.bytes / gate.seconds / decode.bandwidth, gate.operations / gate.seconds / decode.peak
    assert (gate.bandwidth_share, gate.peak_share) == pytest.approx(rates)


def test_profiling_changes_no_result(tiny_nb):
    with lite_runtime.load(tiny_nb) as model, model.session() as plain, model.session() as profiled:
        expected = plain.forward([5, 7, 9])
        with model.profile() as take:
            assert (profiled.forward([5, 7, 9]) == expected).all()
            steps = take()
            assert take() == []
        assert sum(step.kind == "linear" for step in steps) == 4 * model.info.n_layers + 1
        assert steps[0].name == "rope.angles" and steps[-1].kind == "other"
        assert (profiled.forward([1]) == plain.forward([1])).all()
        with pytest.raises(lite_runtime.errors.UsageError, match="start one first"):
            take()


def test_closing_a_model_while_it_is_profiled(tiny_nb):
    model = lite_runtime.load(tiny_nb)
    with model.profile():
        model.close()


def step(kind, seconds, nbytes=0, operations=0, name="layers.3.mlp.up_proj.weight"):
    from lite_runtime.model import StepProfile

    return StepProfile(name, kind, 1, seconds, nbytes, operations)


@pytest.mark.parametrize(
    "kind, nbytes, operations, bound, words",
    [
        ("linear", 80, 10, "bandwidth", "80% of the bandwidth"),
        ("linear", 30, 600, "arithmetic", "60% of the int8 peak"),
        ("linear", 10, 90, "other", "10% of the bandwidth"),
        ("attention", 60, 999, "bandwidth", "60% of the bandwidth"),
        ("attention", 30, 999, "arithmetic", "30% of the bandwidth"),
        ("norm", 90, 0, "other", ""),
    ],
)
def test_what_bounds_a_part(kind, nbytes, operations, bound, words):
    recorder = profile.Recorder()
    recorder.add_steps([step(kind, 1.0, nbytes, operations)], 1.0, 1)
    part = recorder.phase(1, 1.0, bandwidth=100, peak=1000, int8=True).parts[0]
    assert (part.bound, part.nearest_ceiling) == (bound, words)


def test_equal_steps_of_all_layers_are_one_part():
    recorder = profile.Recorder()
    names = "layers.{0}.self_attn.q_proj.weight + layers.{0}.self_attn.k_proj.weight"
    recorder.add_steps([step("linear", 0.1, 5, 7, names.format(i)) for i in (0, 1, 12)], 0.4, 1)
    part, calls = recorder.phase(1, 0.4, 1, 1, True).parts
    assert (part.name, part.calls, part.bytes, part.operations) == ("q_proj + k_proj", 3, 15, 21)
    assert (calls.kind, calls.seconds) == ("calls", pytest.approx(0.1))


def test_command_prints_table_and_json(tiny_nb, capsys):
    arguments = ["profile", str(tiny_nb), "--prompt-tokens", "20", "--new-tokens", "4", "--threads", "1"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "prefill: 20 tokens in" in text and "decode: 4 tokens in" in text
    assert all(f"  linear {name} " in text for name in LINEARS)
    assert text.splitlines()[-1].startswith("bound      by ")
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["decode"]["tokens"] == 4 and report["threads"] == 1
    longest = max(report["prefill"]["parts"] + report["decode"]["parts"], key=lambda part: part["seconds"])
    assert (report["bound"]["kind"], report["bound"]["by"]) == (longest["kind"], longest["bound"])


def test_fp32_file_has_no_int8_peak(export_nb):
    with lite_runtime.load(export_nb("random:tiny", quant="fp32")) as model:
        phases = profile.profile(model, 5, 2)
    assert all(part.peak_share == 0 for phase in phases.values() for part in phase.parts)
    assert parts_of(phases["decode"], "linear")["o_proj"].operations > 0


def test_png(tiny_nb, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "profile.png"
    arguments = ["profile", str(tiny_nb), "--prompt-tokens", "20", "--new-tokens", "4", "--png", str(path)]
    assert main(arguments) == 0
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 20_000


def test_png_needs_matplotlib_and_a_folder(tiny_nb, tmp_path, monkeypatch, capsys):
    assert main(["profile", str(tiny_nb), "--png", str(tmp_path / "no" / "x.png")]) == 2
    assert "which is no folder" in capsys.readouterr().err
    importing = builtins.__import__

    def without_matplotlib(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return importing(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    assert main(["profile", str(tiny_nb), "--png", str(tmp_path / "x.png")]) == 2
    assert "pip install 'edge-kit[profile]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_context_that_does_not_hold_it(tiny_nb, capsys):
    assert main(["profile", str(tiny_nb), "--new-tokens", "3000"]) == 2
    assert "need a context of 3128, the limit is 2048" in capsys.readouterr().err
