"""The exporter: both writers, both ways to the tensors, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
from pathlib import Path

import numpy as np
import pytest

from edge_kit.cli import main
from edge_kit.nb import tiles
from edge_kit.nb.bundle import model_digest, read_bundle, read_manifest
from edge_kit.nb.reader import NbFile
from lite_runtime.errors import EdgeKitError, FileFormatError, UnsupportedError, UsageError

pytest.importorskip("paddle", reason="export needs paddlepaddle")

from edge_kit.export import lower, pipeline
from edge_kit.export.checkpoint import open_checkpoint
from edge_kit.export.manifest import build_manifest
from edge_kit.export.pipeline import export_model
from edge_kit.export.progress import Progress
from edge_kit.export.quantize import largest_error, quantize_rows
from edge_kit.export.tensors import CheckpointTensors, build_decoder
from edge_kit.export.trace import trace_program


def export(out: Path, model="random:tiny", target="x86", quant="int8", optimizer="builtin"):
    return export_model(model, target, quant, optimizer, str(out), Progress(quiet=True))


def test_quantized_rows_are_within_half_a_step():
    weight = np.random.default_rng(0).standard_normal((5, 33)).astype(np.float32)
    weight[2] = 0
    values, scale = quantize_rows(weight)
    assert values.dtype == np.int8 and scale.dtype == np.float32
    assert np.abs(values).max(axis=1).tolist() == [127, 127, 0, 127, 127]
    assert scale[2] == 0
    error = np.abs(values * scale[:, None] - weight)
    assert (error <= 0.5001 * scale[:, None]).all()
    assert largest_error(weight, values, scale) == pytest.approx(error.max() / np.abs(weight).max(), rel=1e-5)


def test_file_holds_the_numbers_of_the_int8_dygraph(tmp_path):
    export(tmp_path / "tiny.nb")
    decoder = build_decoder(CheckpointTensors(open_checkpoint("random:tiny"), "int8"))
    with NbFile(tmp_path / "tiny.nb") as file:
        parameters = dict(decoder.named_parameters())
        assert set(parameters) == set(file.tensors)
        for name, parameter in parameters.items():
            np.testing.assert_array_equal(file.array(name), parameter.numpy(), err_msg=name)


def test_weights_come_back_within_their_quantization_error(tmp_path):
    summary = export(tmp_path / "tiny.nb")
    checkpoint = open_checkpoint("random:tiny")
    with NbFile(tmp_path / "tiny.nb") as file:
        for name, error in summary.errors.items():
            layer = name.rsplit(".", 1)[0]
            values = file.array(name)
            values = tiles.unpack(values) if values.ndim == 4 else values
            source = checkpoint.tensor(name if name.startswith("lm_head") else f"model.{name}")
            scale = file.array(f"{layer}.scale").reshape(-1, 1)
            found = np.abs(values * scale - source).max() / np.abs(source).max()
            assert found == pytest.approx(error, rel=1e-4) and 0 < error < 0.004


def test_streamed_and_dygraph_exports_are_byte_identical(tmp_path, monkeypatch):
    export(tmp_path / "dygraph.nb")
    monkeypatch.setattr(pipeline, "_DYGRAPH_LIMIT", 0)
    export(tmp_path / "streamed.nb")
    assert (tmp_path / "dygraph.nb").read_bytes() == (tmp_path / "streamed.nb").read_bytes()


@pytest.mark.parametrize("quant", ["int8", "fp32"])
@pytest.mark.parametrize("target", ["x86", "arm"])
@pytest.mark.stock
def test_both_writers_give_the_stock_runtime_the_same_logits(tmp_path, stock_python, target, quant):
    from edge_kit.stock import StockModel

    logits = []
    for optimizer in ("builtin", "paddlelite"):
        path = tmp_path / f"{optimizer}.nb"
        assert export(path, target=target, quant=quant, optimizer=optimizer).optimizer == optimizer
        with StockModel(path) as model:
            session = model.session()
            logits.append([session.forward([1, 7, 300, 12, 5]), session.forward([9])])
    for builtin, paddlelite in zip(*logits):
        np.testing.assert_array_equal(builtin, paddlelite)
    assert np.std(logits[0][0]) > 3


@pytest.mark.stock
@pytest.mark.parametrize("optimizer", ["builtin", "paddlelite"])
def test_the_stock_optimizer_reads_arm_files(tmp_path, stock_python, optimizer):
    """`paddle_lite_opt --optimized_nb_model_path` draws the program: one node per op."""
    path = tmp_path / "tiny.nb"
    export(path, target="arm", optimizer=optimizer)
    opt = Path(stock_python).with_name("paddle_lite_opt")
    command = [opt, f"--optimized_nb_model_path={path}", f"--visualization_file_output_path={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if shutil.which("dot"):  # it leaves the picture to Graphviz
        assert done.returncode == 0, done.stderr
    drawn = re.findall(r'label="(\w+)"[^\n]*fillcolor="yellow"', (tmp_path / "Block_0.dot").read_text())
    with NbFile(path) as model:
        assert sorted(drawn) == sorted(op.type for op in model.program.ops)


@pytest.mark.stock
def test_both_writers_write_the_same_tensors_aligned(tmp_path, stock_python):
    for optimizer in ("builtin", "paddlelite"):
        export(tmp_path / f"{optimizer}.nb", optimizer=optimizer)
    with NbFile(tmp_path / "builtin.nb") as ours, NbFile(tmp_path / "paddlelite.nb") as opts:
        assert list(ours.tensors) == list(opts.tensors)
        for name, tensor in ours.tensors.items():
            assert tensor.offset % 64 == 0 and opts.tensors[name].offset % 64 == 0
            np.testing.assert_array_equal(ours.array(name), opts.array(name))


def test_dygraph_int8_agrees_with_the_file(tmp_path):
    from edge_kit.export.evaluate import checkpoint_logits

    from edge_kit.executor import Executor

    export(tmp_path / "tiny.nb")
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    dygraph = checkpoint_logits("random:tiny", "int8").forward(ids)
    executor = Executor(tmp_path / "tiny.nb", "exact").session().forward(ids)
    assert np.abs(dygraph - executor).max() <= 1e-4 * np.abs(dygraph).max()


def test_bundle_and_manifest(tmp_path):
    summary = export(tmp_path / "tiny.nb", target="arm")
    files = read_bundle(tmp_path / "tiny.nb")
    assert {"manifest.json", "config.json", "tokenizer.json", "tokenizer_config.json"} <= set(files)
    manifest = read_manifest(tmp_path / "tiny.nb")
    assert manifest["model_digest"] == summary.model_digest == model_digest(tmp_path / "tiny.nb")
    assert manifest["target"] == "arm" and manifest["quant"] == "int8"
    assert str(tmp_path) not in str(manifest)


def test_manifest_names_the_source_without_its_folder(tmp_path):
    checkpoint = open_checkpoint("random:tiny")
    summary = export(tmp_path / "tiny.nb")
    assert build_manifest(checkpoint, summary, "")["source"] == checkpoint.source
    for source in (tmp_path / "model.gguf", f"{tmp_path / 'model.gguf'}/"):
        checkpoint.source = str(source)
        assert build_manifest(checkpoint, summary, "")["source"] == "model.gguf"


def test_command_gives_its_summary_as_json_or_text(tmp_path, capsys):
    command = ["export", "--model", "random:tiny", "--optimizer", "builtin", "--target", "x86", "--out"]
    assert main([*command, str(tmp_path / "a.nb"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["file_bytes"] == (tmp_path / "a.nb").stat().st_size
    assert 0.5 < summary["int8_share"] < 1 and 0 < summary["largest_error"] < 0.01
    assert summary["peak_rss_bytes"] > 1e7 and all(seconds >= 0 for seconds in summary["seconds"].values())

    assert main([*command, str(tmp_path / "b.nb")]) == 0
    shown = capsys.readouterr()
    assert "\n  0.00" in shown.out and "layers.1.mlp.down_proj.weight" in shown.out  # errors per tensor
    assert f"wrote {tmp_path / 'b.nb'}: " in shown.out and "int8 share" in shown.out
    assert "trace program: " in shown.err and "write .nb: " in shown.err
    assert (tmp_path / "a.nb").read_bytes() == (tmp_path / "b.nb").read_bytes()


def test_too_few_int8_bytes_are_reported(tmp_path, monkeypatch):
    assert export(tmp_path / "tiny.nb").warnings == []
    monkeypatch.setattr(pipeline, "_INT8_SHARE_FROM", 1000)  # its norms and scales weigh more
    summary = export(tmp_path / "tiny.nb")
    assert summary.int8_share < 0.99
    assert summary.warnings == [
        f"only {summary.int8_share:.1%} of the parameter bytes are int8, expected at least 99%"
    ]


def test_all_expanded_weights_share_one_variable(tmp_path):
    export(tmp_path / "tiny.nb")
    with NbFile(tmp_path / "tiny.nb") as file:
        program = file.program
        parameters = {var.name for var in program.vars if var.persistable}
        casts = {
            op.outputs["Out"][0]
            for op in program.ops
            if op.type == "cast" and op.inputs["X"][0] in parameters
        }
        assert casts == {"weight.cast"}
        # Every name that an op reads was written before, is a parameter, or is fed.
        known = set(parameters)
        for op in program.ops:
            assert {name for names in op.inputs.values() for name in names} <= known, op
            known |= {name for names in op.outputs.values() for name in names}


def test_preflight_names_op_and_layer():
    parsed = trace_program(open_checkpoint("random:tiny").config, "int8")
    next(op for op in parsed.ops if op.type == "silu").type = "swiglu"
    with pytest.raises(
        UnsupportedError, match=r"target arm.*\n.*swiglu, in or after layers\.0\.mlp\.gate_proj"
    ):
        lower.preflight(parsed, "arm")


def test_a_failed_export_leaves_nothing(tmp_path, monkeypatch):
    read = CheckpointTensors.array

    def damaged(self, name):
        if name == "norm.weight":
            raise FileFormatError("norm.weight is damaged")
        return read(self, name)

    monkeypatch.setattr(pipeline, "_DYGRAPH_LIMIT", 0)
    monkeypatch.setattr(CheckpointTensors, "array", damaged)
    (tmp_path / "tiny.nb").write_bytes(b"an older file")
    with pytest.raises(FileFormatError, match="norm.weight"):
        export(tmp_path / "tiny.nb")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.nb"]
    assert (tmp_path / "tiny.nb").read_bytes() == b"an older file"


def fake_opt(folder: Path, script: str) -> str:
    path = folder / "paddle_lite_opt"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize("script", ["echo the op is bad; exit 0", "echo the op is bad; exit 134"])
def test_an_opt_that_writes_nothing_is_reported(tmp_path, monkeypatch, script):
    opt = fake_opt(tmp_path, script)
    monkeypatch.setattr("edge_kit.export.paddlelite.find_opt", lambda: opt)
    with pytest.raises(EdgeKitError, match="wrote no file(.|\n)*the op is bad(.|\n)*--optimizer builtin"):
        export(tmp_path / "tiny.nb", optimizer="paddlelite")
    assert [path.name for path in tmp_path.iterdir()] == ["paddle_lite_opt"]


def test_an_opt_that_changes_a_tensor_is_reported(tmp_path, monkeypatch):
    export(tmp_path / "fp32.nb", quant="fp32")
    opt = fake_opt(
        tmp_path,
        f'for a; do case "$a" in --optimize_out=*) cp "{tmp_path}/fp32.nb" "${{a#*=}}.nb";; esac; done',
    )
    monkeypatch.setattr("edge_kit.export.paddlelite.find_opt", lambda: opt)
    with pytest.raises(EdgeKitError, match="embed_tokens.weight is float32"):
        export(tmp_path / "tiny.nb", optimizer="paddlelite")
    assert not (tmp_path / "tiny.nb").exists()


@pytest.mark.parametrize("out", ["", "missing/tiny.nb"])
def test_out_must_be_a_file_in_an_existing_folder(tmp_path, out):
    with pytest.raises(UsageError, match="existing folder"):
        export(tmp_path / out)


def test_paddlelite_without_opt_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("edge_kit.export.paddlelite.find_opt", lambda: None)
    with pytest.raises(UsageError, match="paddlelite==2.13rc0"):
        export(tmp_path / "tiny.nb", optimizer="paddlelite")
    assert export(tmp_path / "tiny.nb", optimizer="auto").optimizer == "builtin"
