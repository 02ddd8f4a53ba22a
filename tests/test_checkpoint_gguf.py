"""GGUF files: names, q and k row order, every block type, and each kind of bad file named for what it is."""

from __future__ import annotations

import hashlib
import json
import struct

import numpy as np
import pytest
import reference_transformers
from checkpoint_files import LLAMA3_SCALING, demo, llama_model, model, refused, same_tensors, write_gguf
from edge_kit.export.checkpoint import open_checkpoint
from edge_kit.export.checkpoint.rope import llama3_factors

from lite_runtime.errors import UnsupportedError

gguf = pytest.importorskip("gguf")
# Rows of 256 values, so that every block type fits.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}


def factors(scaling) -> np.ndarray:
    inv_freq = model().config.rope_inv_freq.astype(np.float64)
    return llama3_factors(inv_freq, scaling, "test").astype(np.float32)


@pytest.mark.parametrize("source", [model(), llama_model(), llama_model(tie_word_embeddings=False)])
def test_fp32_file_is_read_as_written(tmp_path, source):
    found = open_checkpoint(str(write_gguf(tmp_path / "tiny.gguf", source)))
    same_tensors(found, source)
    expected = dict(vars(source.config), name="tiny", rope_inv_freq=None)
    assert dict(vars(found.config), rope_inv_freq=None) == expected
    np.testing.assert_array_equal(found.config.rope_inv_freq, source.config.rope_inv_freq)
    assert json.loads(found.files["generation_config.json"])["eos_token_id"] == [256, 258]


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("make", [model, llama_model])
def test_block_types(tmp_path, make, kind):
    source = make(**WIDE)
    found = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", source, kind)))
    bits = {"F16": 11, "BF16": 8, "Q8_0": 7}.get(kind, int(kind[1]) - 1 if kind[0] == "Q" else 0)
    for name in source.tensor_names:
        exact = source.tensor(name)
        largest = np.abs(exact).max()
        assert np.abs(found.tensor(name) - exact).max() <= largest * 2.0**-bits, name


@pytest.mark.parametrize(
    "kind", ["Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_XS", "IQ4_NL", "IQ2_S", "TQ1_0"]
)
def test_types_that_only_ggml_writes(tmp_path, kind):
    """The `gguf` package cannot quantize these: random blocks must come out as its `dequantize` says."""
    source = model(**WIDE)
    qtype = gguf.GGMLQuantizationType[kind]
    path = write_gguf(tmp_path / "m.gguf", source, skip=["blk.1.ffn_up.weight"])
    block, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
    raw = np.random.default_rng(5).integers(0, 48, (256, 256 // block * block_bytes), dtype=np.uint8)
    _append_raw_tensor(path, source, "blk.1.ffn_up.weight", raw, qtype)
    found = open_checkpoint(str(path)).tensor("model.layers.1.mlp.up_proj.weight")
    np.testing.assert_array_equal(found, gguf.quants.dequantize(raw, qtype))
    assert found.shape == (256, 256) and found.any()


def _append_raw_tensor(path, source, name, raw, qtype):
    class WithRaw(gguf.GGUFWriter):
        def write_header_to_file(self, *args, **kwargs):
            self.add_tensor(name, raw, raw_dtype=qtype)
            super().write_header_to_file(*args, **kwargs)

    original, gguf.GGUFWriter = gguf.GGUFWriter, WithRaw
    try:
        write_gguf(path, source, skip=[name])
    finally:
        gguf.GGUFWriter = original


def test_llama3_scaling_is_recognized_in_rope_freqs(tmp_path):
    path = write_gguf(
        tmp_path / "m.gguf", llama_model(), tensors=[("rope_freqs.weight", factors(LLAMA3_SCALING))]
    )
    config = open_checkpoint(str(path)).config
    assert config.rope_scaling == LLAMA3_SCALING
    np.testing.assert_array_equal(
        config.rope_inv_freq, llama_model(rope_scaling=LLAMA3_SCALING).config.rope_inv_freq
    )


def test_other_rope_freqs_are_refused(tmp_path):
    other = factors({**LLAMA3_SCALING, "original_max_position_embeddings": 4096})
    path = write_gguf(tmp_path / "m.gguf", llama_model(), tensors=[("rope_freqs.weight", other)])
    assert "rope_freqs.weight" in refused(path, UnsupportedError)


def test_linear_scaling(tmp_path):
    metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    found = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", llama_model(), metadata=metadata)))
    np.testing.assert_allclose(found.config.rope_inv_freq, llama_model().config.rope_inv_freq / 4, rtol=1e-6)


@pytest.mark.parametrize(
    "metadata, words",
    [
        ({"general.architecture": "gemma3"}, ["'gemma3'", "llama or qwen2"]),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, ["'yarn'"]),
        ({"llama.rope.dimension_count": 8}, ["rope.dimension_count is 8", "head size 16"]),
        ({"llama.expert_count": 8}, ["llama.expert_count = 8"]),
        ({"llama.attention.sliding_window": 4096}, ["sliding_window = 4096"]),
        ({"llama.attention.causal": False}, ["causal"]),
        ({"split.count": 3}, ["split GGUF"]),
        ({"tokenizer.ggml.model": "llama"}, ["tokenizer.ggml.model is 'llama'", "'gpt2'"]),
        ({"tokenizer.ggml.pre": "default"}, ["tokenizer.ggml.pre is 'default'", "smollm", "qwen2"]),
        ({"tokenizer.ggml.add_eos_token": True}, ["add_eos_token"]),
    ],
)
def test_unsupported_metadata(tmp_path, metadata, words):
    message = refused(write_gguf(tmp_path / "m.gguf", llama_model(), metadata=metadata), UnsupportedError)
    assert all(word in message for word in words), message


def test_a_key_that_is_off_is_no_obstacle(tmp_path):
    assert open_checkpoint(
        str(write_gguf(tmp_path / "m.gguf", llama_model(), metadata={"llama.expert_count": 0}))
    )


@pytest.mark.parametrize(
    "options, words",
    [
        ({"skip": ["llama.block_count"]}, ["llama.block_count is None"]),
        ({"skip": ["blk.1.ffn_up.weight"]}, ["mlp.up_proj.weight is missing", "1 of the"]),
        ({"skip": ["token_embd.weight"]}, ["token_embd.weight is missing"]),
        (
            {"metadata": {"llama.feed_forward_length": 180}},
            ["blk.0.ffn_gate.weight", "[176, 64]", "[180, 64]"],
        ),
        ({"metadata": {"llama.attention.head_count_kv": 3}}, ["4 heads", "3 key/value"]),
        ({"metadata": {"llama.attention.head_count": [4, 4]}}, ["head_count is [4, 4]"]),
        ({"metadata": {"tokenizer.ggml.merges": ["h e", "x yz"]}}, ["merge 'x yz'"]),
        ({"metadata": {"tokenizer.ggml.tokens": ["a", "a"]}}, ["2 tokens, but 331 token types"]),
        ({"metadata": {"tokenizer.ggml.eos_token_id": 99999}}, ["eos_token_id is 99999 of 331"]),
        ({"metadata": {"tokenizer.ggml.add_bos_token": True}}, ["bos_token_id is missing"]),
    ],
)
def test_metadata_that_contradicts_itself_or_the_weights(tmp_path, options, words):
    message = refused(write_gguf(tmp_path / "m.gguf", llama_model(), **options))
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q_norm.weight", "blk.0.attn_q.bias", "blk.7.ffn_up.weight", "v.patch"]
)
def test_tensor_that_would_be_ignored(tmp_path, name):
    path = write_gguf(tmp_path / "m.gguf", llama_model(), tensors=[(name, np.zeros(16, np.float32))])
    assert name in refused(path, UnsupportedError)


def test_integer_tensors(tmp_path):
    path = write_gguf(
        tmp_path / "m.gguf",
        model(),
        skip=["output.weight"],
        tensors=[("output.weight", np.zeros((331, 64), np.int32))],
    )
    assert "I32" in refused(path, UnsupportedError)


def test_not_finite(tmp_path):
    values = model().tensor("lm_head.weight")
    values[3, 7] = np.nan
    path = write_gguf(
        tmp_path / "m.gguf", model(), skip=["output.weight"], tensors=[("output.weight", values)]
    )
    message = refused(path)
    assert "lm_head.weight" in message and "[3, 7]" in message


@pytest.mark.parametrize(
    "content, word",
    [
        (b"<html>404</html>", "HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-LFS pointer"),
        (b"", "is empty"),
        (b"GGML....", "not a GGUF file"),
        (b"GGUF", "damaged or cut short"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60), "damaged or cut short"),
        (b"GGUF" + struct.pack("<IQQ", 99, 1, 1), "damaged or cut short"),
    ],
)
def test_impostor(tmp_path, content, word):
    (tmp_path / "m.gguf").write_bytes(content)
    message = refused(tmp_path / "m.gguf")
    assert word in message and "m.gguf" in message


def test_cut_short_anywhere(tmp_path):
    whole = write_gguf(tmp_path / "m.gguf", model()).read_bytes()
    for size in np.linspace(5, len(whole) - 1, 25).astype(int):
        (tmp_path / "m.gguf").write_bytes(whole[:size])
        assert "m.gguf: damaged or cut short" in refused(tmp_path / "m.gguf")


# --- the real file


@pytest.mark.reference
def test_demo_tensors_equal_transformers():
    checkpoint = demo()
    assert checkpoint.config.tied_head and not checkpoint.config.qkv_bias and checkpoint.config.head_dim == 64
    assert (
        checkpoint.config.name == "SmolLM2-135M-Instruct" and b"Apache License" in checkpoint.files["LICENSE"]
    )
    expected = reference_transformers.tensor_digests(checkpoint.source)
    for name in checkpoint.tensor_names:
        assert hashlib.sha256(checkpoint.tensor(name).tobytes()).hexdigest() == expected[name], name
