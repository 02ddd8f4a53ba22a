"""The whole chain on real weights: the demo's INT8 file in the native runtime, against other engines."""

from __future__ import annotations

import numpy as np
import pytest

import lite_runtime
from edge_kit.fixed_text import fixed_texts
from edge_kit.metrics import Comparison, compare_text

pytest.importorskip("paddle", reason="the fp32 reference is the dygraph model")

from edge_kit.export.checkpoint import open_checkpoint
from edge_kit.export.evaluate import DygraphSession, checkpoint_logits
from edge_kit.export.tensors import CheckpointTensors, build_decoder

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "学而时习之，",
    "Once upon a time, in a small village by the sea,",
    "1, 2, 3, 5, 8,",
)

NEW_TOKENS = 64


def test_int8_runtime_is_close_to_fp32_on_real_weights(demo_nb, native_library):
    decoder = build_decoder(CheckpointTensors(open_checkpoint("demo"), "fp32"))
    comparison = Comparison()
    with lite_runtime.load(demo_nb) as model:
        for text in fixed_texts():
            ids = model.text.encode(text)
            for _ in compare_text(comparison, DygraphSession(decoder), model.session(), ids):
                pass
    report = comparison.report()
    print(report)
    assert report.tokens >= 2000
    assert report.perplexity_ratio <= 1.015
    assert report.mean_kl <= 0.013
    assert report.top1_agreement >= 0.92


def greedy(engine, prompt_ids, n_tokens):
    """ids of prompt and answer, and the logits [n_tokens, vocabulary] that chose the answer."""
    ids, rows, step = list(prompt_ids), [], list(prompt_ids)
    for _ in range(n_tokens):
        rows.append(engine.forward(step)[-1])
        step = [int(rows[-1].argmax())]
        ids += step
    return ids, np.stack(rows)


@pytest.mark.parametrize("mode", ["exact", "int8"])
def test_greedy_text_is_equal_on_every_isa_and_in_the_executor(demo_nb, native_library, mode):
    """In INT8 mode all engines give equal floats; in exact mode a near tie may be turned over."""
    from edge_kit.executor import Executor

    executor = Executor(demo_nb, mode)
    with lite_runtime.load(demo_nb) as model:
        prompts = [model.text.encode(prompt) for prompt in PROMPTS]
    answers = [greedy(executor.session(), ids, NEW_TOKENS) for ids in prompts]
    for isa in lite_runtime.available_isas():
        with lite_runtime.load(demo_nb, mode=mode, isa=isa) as model:
            for prompt, (ids, expected) in zip(prompts, answers):
                # One pass over prompt and answer: rows are bit-identical to those of one-by-one decoding.
                session = model.session()
                if len(prompt) > 1:
                    session.forward(ids[: len(prompt) - 1])
                found = session.forward(ids[len(prompt) - 1 : -1])
                if mode == "int8":
                    np.testing.assert_array_equal(found, expected, err_msg=isa)
                    continue
                largest = np.abs(expected).max(axis=1)
                rows = np.arange(len(expected))
                gap = expected.max(axis=1) - expected[rows, found.argmax(axis=1)]
                assert (gap < 1e-3 * largest).all(), (isa, gap / largest)
                assert np.abs(found - expected).max() <= 1e-3 * largest.max()
        with lite_runtime.load(demo_nb, mode=mode, isa=isa) as model:
            if isa != "scalar" and mode == "int8":
                ids, _ = greedy(model.session(), prompts[0], NEW_TOKENS)
                assert ids == answers[0][0]


@pytest.mark.stock
def test_exact_runtime_agrees_with_stock_paddle_lite(demo_nb, native_library, stock_python):
    from edge_kit.stock import StockModel

    with lite_runtime.load(demo_nb, mode="exact") as model, StockModel(demo_nb) as stock:
        ids = model.text.encode(fixed_texts()[0])[:64]
        expected = stock.session().forward(ids)
        found = model.session().forward(ids)
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


@pytest.mark.reference
def test_fp32_dygraph_agrees_with_transformers_on_the_demo():
    from edge_kit.export.checkpoint.fetch import SMOLLM2_GGUF, fetch
    from reference_transformers import logits_of_gguf

    ids = list(range(1, 400, 7))
    expected = logits_of_gguf(*fetch(SMOLLM2_GGUF), ids)
    found = checkpoint_logits("demo").forward(ids)
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


@pytest.mark.reference
def test_fp32_dygraph_agrees_with_transformers_on_tiny(tmp_path):
    from edge_kit.export.checkpoint.save import write_hf_folder
    from reference_transformers import logits_of_folder

    write_hf_folder(open_checkpoint("random:tiny"), tmp_path / "tiny")
    ids = list(range(3, 300, 5))
    expected = logits_of_folder(tmp_path / "tiny", ids)
    found = checkpoint_logits("random:tiny").forward(ids)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
