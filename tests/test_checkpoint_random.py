"""Random models: the same numbers every time, activations that live, logits equal to transformers'."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import reference_transformers
from checkpoint_files import LLAMA3_SCALING, llama_model, model
from edge_kit.export.checkpoint import fetch, open_checkpoint, tensor_shapes
from edge_kit.export.checkpoint.random_model import MODELS
from edge_kit.export.checkpoint.save import write_hf_folder
from float_forward import forward
from tokenizers import Tokenizer

from lite_runtime.errors import UsageError

IDS = list(range(3, 331, 7))


def test_flagship_shape():
    config = open_checkpoint("random:deepseek-r1-distill-qwen-1.5b").config
    shapes = tensor_shapes(config)
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 1_777_088_000
    assert (config.head_dim, config.n_kv_heads, config.rope_theta) == (128, 2, 10000.0)
    assert config.qkv_bias and not config.tied_head and config.max_position_embeddings == 131072


def test_smollm2_shape_is_the_demo_one():
    config = open_checkpoint("random:smollm2-135m").config
    assert sum(int(np.prod(shape)) for shape in tensor_shapes(config).values()) == 134_515_008


def test_order_of_reading_does_not_matter():
    forwards, backwards = open_checkpoint("random:tiny"), open_checkpoint("random:tiny")
    ahead = {name: forwards.tensor(name) for name in forwards.tensor_names}
    for name in reversed(backwards.tensor_names):
        np.testing.assert_array_equal(backwards.tensor(name), ahead[name])


def test_rows_and_layers_differ():
    checkpoint = open_checkpoint("random:tiny")
    for name in checkpoint.tensor_names:
        values = checkpoint.tensor(name).reshape(len(checkpoint.tensor(name)), -1)
        assert len(np.unique(values, axis=0)) == len(values)
    first, second = (checkpoint.tensor(f"model.layers.{i}.mlp.up_proj.weight") for i in (0, 1))
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.05


def test_flagship_weights_are_made_fast():
    checkpoint = open_checkpoint("random:deepseek-r1-distill-qwen-1.5b")
    name = "model.layers.7.mlp.down_proj.weight"
    started = time.process_time()
    values = checkpoint.tensor(name)
    seconds_per_value = (time.process_time() - started) / values.size
    assert seconds_per_value * 1_777_088_000 < 60
    assert abs(values.std() * np.sqrt(8960) - 1) < 0.01


@pytest.mark.parametrize("checkpoint", [model(), llama_model(rope_theta=500.0)], ids=["qwen2", "llama"])
def test_logits_are_spread_and_differ_by_position(checkpoint):
    logits = forward(checkpoint, IDS)
    assert np.isfinite(logits).all() and logits.std() >= 3
    probabilities = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    perplexity = np.exp(-(probabilities * np.log(probabilities)).sum(-1))
    assert 2 < np.median(perplexity) < 60  # neither one-hot nor uniform over 331
    assert len(set(logits.argmax(-1))) > len(IDS) / 2
    # Context matters: the same last token after another past gives other logits.
    other = forward(checkpoint, IDS[::-1] + IDS[-1:])[-1]
    assert np.abs(other - logits[-1]).max() > 0.5


@pytest.mark.reference
@pytest.mark.parametrize(
    "checkpoint",
    [model(), llama_model(rope_scaling={**LLAMA3_SCALING, "original_max_position_embeddings": 64})],
    ids=["qwen2", "llama-tied-llama3"],
)
def test_logits_equal_transformers(checkpoint, tmp_path):
    write_hf_folder(checkpoint, tmp_path / "m")
    expected = reference_transformers.logits_of_folder(tmp_path / "m", IDS)
    found = forward(open_checkpoint(str(tmp_path / "m")), IDS)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["tiny", "smollm2-135m", "qwen2.5-0.5b"])
def test_byte_tokenizer(name):
    checkpoint = open_checkpoint(f"random:{name}")
    tokenizer = Tokenizer.from_str(checkpoint.files["tokenizer.json"].decode())
    assert tokenizer.get_vocab_size() == checkpoint.config.vocab_size
    text = "<|im_start|>user\nwerde é 中文 😀\t2024<|im_end|>"
    ids = tokenizer.encode(text).ids
    assert ids[0] == 257 and ids[-1] == 258 and ids[1:-1] == list(text[12:-10].encode())
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode([300, checkpoint.config.vocab_size - 1]).split()[0] == "w300"
    assert json.loads(checkpoint.files["generation_config.json"])["eos_token_id"] == [256, 258]


def test_flagship_without_network_is_byte_level(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGE_KIT_CACHE", str(tmp_path))

    def offline(*_):
        raise fetch.FetchError("no network")

    monkeypatch.setattr("edge_kit.export.checkpoint.random_model.fetch", offline)
    checkpoint = open_checkpoint("random:deepseek-r1-distill-qwen-1.5b")
    assert "byte-level" in checkpoint.source and "could not be fetched" in checkpoint.source
    assert Tokenizer.from_str(checkpoint.files["tokenizer.json"].decode()).get_vocab_size() == 151936


def test_unknown_name_suggests_the_closest():
    with pytest.raises(UsageError, match="did you mean 'random:qwen2.5-0.5b'") as caught:
        open_checkpoint("random:qwen2.5-0.5")
    assert all(name in str(caught.value) for name in MODELS)
