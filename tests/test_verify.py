"""The metrics, against values worked out by hand, and `edge-kit verify`: its gates and exit codes."""

from __future__ import annotations

import json
import math
import zipfile

import numpy as np
import pytest

from edge_kit import fixed_text
from edge_kit.cli import main
from edge_kit.commands import verify
from edge_kit.executor import Session
from edge_kit.metrics import Comparison, compare_greedy, compare_text
from edge_kit.nb.bundle import read_bundle, write_bundle
from lite_runtime.errors import UsageError


def logits_of(*rows):
    """Rows of probabilities as logits, shifted by an arbitrary constant that must not matter."""
    return np.log(np.array(rows, np.float32)) + np.float32(3)


def test_metrics_by_hand():
    comparison = Comparison()
    reference = logits_of([0.5, 0.25, 0.25], [0.1, 0.1, 0.8])
    candidate = logits_of([0.25, 0.5, 0.25], [0.1, 0.1, 0.8])
    comparison.add(reference, candidate, [0, 2])
    report = comparison.report()
    assert report.tokens == 2 and report.disagreements == 1
    assert report.top1_agreement == 0.5
    # Row 0: 0.5 ln 2 + 0.25 ln 0.5 + 0 = 0.25 ln 2; row 1: 0.
    assert report.mean_kl == pytest.approx(0.125 * math.log(2), abs=1e-7)
    assert report.perplexity_reference == pytest.approx(1 / math.sqrt(0.5 * 0.8), rel=1e-6)
    assert report.perplexity_candidate == pytest.approx(1 / math.sqrt(0.25 * 0.8), rel=1e-6)
    assert report.perplexity_ratio == pytest.approx(math.sqrt(2), rel=1e-6)
    # Largest |logit| is ln 0.8 + 3, or ln 0.1 + 3 = 0.697 which is smaller.
    assert report.largest_difference == pytest.approx(math.log(2) / (math.log(0.8) + 3), rel=1e-6)


def test_the_last_row_may_have_no_successor():
    comparison = Comparison()
    rows = logits_of([0.5, 0.5], [0.9, 0.1])
    comparison.add(rows, rows, [1])
    report = comparison.report()
    assert report.tokens == 2 and report.perplexity_reference == pytest.approx(2)
    assert (report.mean_kl, report.top1_agreement, report.largest_difference) == (0, 1, 0)


def test_chunks_add_up_to_the_whole():
    rng = np.random.default_rng(1)
    reference = rng.standard_normal((200, 11)).astype(np.float32)
    candidate = reference + rng.standard_normal((200, 11)).astype(np.float32) * np.float32(0.1)
    ids = rng.integers(0, 11, 201)
    whole, parts = Comparison(), Comparison()
    whole.add(reference, candidate, ids[1:])
    for begin in range(0, 200, 70):
        parts.add(reference[begin : begin + 70], candidate[begin : begin + 70], ids[begin + 1 : begin + 71])
    assert parts.report().as_dict() == pytest.approx(whole.report().as_dict(), rel=1e-12)


def test_a_near_tie_is_no_disagreement():
    comparison = Comparison()
    reference = np.array([[10, 9.9901, 0], [10, 9.9899, 0]], np.float32)  # gaps of 0.99e-3 and 1.01e-3
    comparison.add(reference, reference[:, [1, 0, 2]], [0, 0])
    assert comparison.report().top1_agreement == 0
    assert comparison.report().disagreements == 1


def test_a_nan_passes_no_gate():
    comparison = Comparison()
    reference = np.array([[1, 2, 3]], np.float32)
    comparison.add(reference, np.array([[1, np.nan, 3]], np.float32), [0])
    comparison.add(reference, reference, [0])
    report = comparison.report()
    for gate in verify.SAME_ARITHMETIC[:1] + verify.QUANTIZED[:2]:
        assert not gate.holds(getattr(report, gate.metric)), gate.metric
    assert report.disagreements == 1


class Scripted:
    """A session whose logits are given row by row; keeps what it was fed."""

    def __init__(self, rows):
        self.rows, self.fed = np.array(rows, np.float32), []

    def forward(self, ids):
        begin = len(self.fed)
        self.fed += list(ids)
        return self.rows[begin : begin + len(ids)]


def test_greedy_forces_both_onward_at_a_near_tie():
    reference = Scripted([[0, 0, 0], [0, 0, 10], [10, 9.995, 0], [0, 10, 0]])
    candidate = Scripted([[0, 0, 0], [0, 0, 10], [9.99, 10, 0], [0, 10, 0]])
    found = compare_greedy(reference, candidate, [1, 1], 3)
    assert found.ids == [2, 0, 1] and found.equal
    assert found.splits == [(1, 0, 1, pytest.approx(5e-4, rel=1e-2))]
    assert reference.fed == candidate.fed == [1, 1, 2, 0]


def test_greedy_calls_a_wide_gap_different():
    found = compare_greedy(Scripted([[10, 0]]), Scripted([[0, 10]]), [0], 1)
    assert not found.equal and found.splits == [(0, 0, 1, 1.0)]


def test_a_text_is_fed_once_with_its_successors():
    rows = np.log(np.array([[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]]))
    first, second, comparison = Scripted(rows), Scripted(rows), Comparison()
    assert list(compare_text(comparison, first, second, [0, 1, 1], chunk=2)) == [2, 1]
    assert first.fed == second.fed == [0, 1, 1]
    assert comparison.report().perplexity_reference == pytest.approx(1 / math.sqrt(0.5 * 0.8), rel=1e-6)


def test_the_fixed_text_is_long_enough_and_of_three_kinds():
    english, chinese, code = fixed_text.fixed_texts()
    assert english.startswith("It is a truth universally acknowledged")
    assert chinese.startswith("子曰：“学而时习之") and "今有雉兔同笼" in chinese
    assert "def " in code and "int main(void)" in code
    assert "english.txt" in (fixed_text.folder() / "SOURCES.md").read_text(encoding="utf-8")


def test_the_fixed_text_has_2000_tokens_of_the_demo(demo_nb):
    from lite_runtime.bundle import Bundle
    from lite_runtime.text import Text

    tokenizer = Text(Bundle(demo_nb))
    assert sum(len(tokenizer.encode(text)) for text in fixed_text.fixed_texts()) >= 2000


def verify_json(capsys, *arguments):
    status = main(["verify", *map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("mode", ["exact", "int8"])
def test_verify_against_the_executor(native_library, tiny_nb, capsys, mode):
    status, found = verify_json(capsys, tiny_nb, "--mode", mode, "--tokens", 1000)
    assert status == 0 and found["passed"] and found["model_digest"] == "holds"
    assert found["mode"] == mode and found["metrics"]["tokens"] == 1000
    assert all(gate["holds"] for gate in found["gates"])
    assert found["metrics"]["largest_difference"] <= (1e-5 if mode == "exact" else 0)


def test_verify_against_stock(native_library, tiny_nb, stock_python, monkeypatch, capsys):
    monkeypatch.setenv("EDGE_KIT_STOCK_PYTHON", stock_python)
    status, found = verify_json(capsys, tiny_nb, "--against", "stock", "--tokens", 300)
    assert status == 0 and found["mode"] == "exact" and found["metrics"]["tokens"] == 300
    assert found["metrics"]["largest_difference"] < 1e-5


def test_verify_against_the_checkpoint(native_library, tiny_nb, capsys):
    status, found = verify_json(capsys, tiny_nb, "--against", "checkpoint:random:tiny", "--tokens", 400)
    assert status == 0 and 1e-5 < found["metrics"]["mean_kl"] <= 0.013


def test_verify_prints_a_table(native_library, tiny_nb, capsys):
    assert main(["verify", str(tiny_nb), "--tokens", "30", "--mode", "exact"]) == 0
    shown = capsys.readouterr().out
    assert "model digest" in shown and "<= 0.001: ok" in shown and shown.endswith("passed\n")


def test_verify_of_another_model_fails_with_1(native_library, tiny_nb, monkeypatch, capsys):
    """The executor gives its logits in reverse: every gate must notice."""
    plain = Session.forward
    monkeypatch.setattr(Session, "forward", lambda self, ids: plain(self, ids)[:, ::-1])
    status, found = verify_json(capsys, tiny_nb, "--tokens", 60)
    assert status == 1 and not found["passed"]
    assert [gate["holds"] for gate in found["gates"]] == [False, False]
    assert main(["verify", str(tiny_nb), "--tokens", "60"]) == 1
    assert "OUTSIDE" in capsys.readouterr().out


def test_verify_of_changed_weights_fails_with_1(native_library, tiny_nb, tmp_path, capsys):
    """One flipped byte in a weight leaves both engines in agreement; the digest tells."""
    from edge_kit.nb.reader import NbFile

    with NbFile(tiny_nb) as file:
        offset = file.tensors["layers.0.mlp.up_proj.weight"].offset
    content = bytearray(tiny_nb.read_bytes())
    content[offset] ^= 1
    changed = tmp_path / "changed.nb"
    changed.write_bytes(content)
    status, found = verify_json(capsys, changed, "--tokens", 30)
    assert status == 1 and found["model_digest"] == "differs" and all(g["holds"] for g in found["gates"])


def test_verify_takes_a_text_of_ones_own(native_library, tiny_nb, tmp_path, capsys):
    text = tmp_path / "own.txt"
    text.write_text("Das Pferd frisst keinen Gurkensalat.", encoding="utf-8")
    status, found = verify_json(capsys, tiny_nb, "--text", text)
    assert status == 0 and 6 <= found["metrics"]["tokens"] <= 40


def test_judges_of_the_same_arithmetic_compare_300_tokens_by_default(tiny_nb, capsys):
    status, found = verify_json(capsys, tiny_nb)
    assert status == 0 and found["metrics"]["tokens"] == 300


def error_of(capsys, *arguments):
    assert main(["verify", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_errors_exit_with_2(tiny_nb, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("EDGE_KIT_STOCK_PYTHON", raising=False)
    assert "--against torch: expected reference" in error_of(capsys, tiny_nb, "--against", "torch")
    assert "names no checkpoint" in error_of(capsys, tiny_nb, "--against", "checkpoint:")
    assert "--against checkpoint: expected" in error_of(capsys, tiny_nb, "--against", "checkpoint")
    assert "computes exactly" in error_of(capsys, tiny_nb, "--against", "stock", "--mode", "int8")
    assert "--tokens 5: expected at least 6" in error_of(capsys, tiny_nb, "--tokens", "5")
    assert "cannot be read" in error_of(capsys, tmp_path / "none.nb")
    assert "no-such-text" in error_of(capsys, tiny_nb, "--text", tmp_path / "no-such-text")
    assert "EDGE_KIT_STOCK_PYTHON is not set" in error_of(capsys, tiny_nb, "--against", "stock")


def test_a_checkpoint_of_another_vocabulary_is_refused(native_library, tiny_nb, monkeypatch, capsys):
    import edge_kit.export.tensors as tensors

    class Other:
        class config:
            vocab_size = 7

    monkeypatch.setattr(tensors, "build_decoder", lambda tensors: Other)
    message = error_of(capsys, tiny_nb, "--against", "checkpoint:random:tiny")
    assert "a vocabulary of 7" in message


def test_a_file_without_a_bundle_or_digest_exits_with_2(tiny_nb, tmp_path, capsys):
    bare = tmp_path / "bare.nb"
    bare.write_bytes(tiny_nb.read_bytes())
    files = read_bundle(bare)
    manifest = json.loads(files["manifest.json"])
    del manifest["model_digest"]
    write_bundle(bare, {**files, "manifest.json": json.dumps(manifest).encode()})
    assert "no model_digest" in error_of(capsys, bare)
    with zipfile.ZipFile(bare) as archive:
        start = min(entry.header_offset for entry in archive.infolist())
    bare.write_bytes(bare.read_bytes()[:start])
    assert "has no bundle" in error_of(capsys, bare)


@pytest.mark.parametrize("content, problem", [(b"\xff\xfe", "no UTF-8"), (b" \n", "empty")])
def test_a_text_that_is_none_is_refused(tmp_path, content, problem):
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=problem):
        fixed_text.read_text(path)
