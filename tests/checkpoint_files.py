"""Small checkpoints for the tests: folders by the kit's writer, GGUF files as llama.cpp writes them."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
from edge_kit.export.checkpoint import Checkpoint, open_checkpoint
from edge_kit.export.checkpoint.byte_tokenizer import byte_tokenizer_files
from edge_kit.export.checkpoint.file_kinds import to_json
from edge_kit.export.checkpoint.hf_config import config_from_hf, config_to_hf
from edge_kit.export.checkpoint.random_model import MODELS, RandomModel
from edge_kit.export.checkpoint.save import write_hf_folder

from lite_runtime.errors import FileFormatError

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def refused(path, error=FileFormatError) -> str:
    """The message with which opening the checkpoint or reading its tensors ends."""
    with pytest.raises(error) as caught:
        checkpoint = open_checkpoint(str(path))
        for name in checkpoint.tensor_names:
            checkpoint.tensor(name)
    return str(caught.value)


def model(**changes) -> RandomModel:
    """`random:tiny` with other config.json values."""
    raw = {**MODELS["tiny"], **changes}
    config = config_from_hf(raw, "changed-tiny", "test")
    files = byte_tokenizer_files(config.vocab_size)
    files["config.json"] = to_json(config_to_hf(config))
    return RandomModel(config, files, "test")


def llama_model(**changes) -> RandomModel:
    llama = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True, "rms_norm_eps": 1e-5}
    return model(**{**llama, **changes})


def folder(tmp_path, dtype="float32", **config_changes):
    """A folder of `random:tiny`, its config.json then changed."""
    path = tmp_path / "model"
    write_hf_folder(model(), path, dtype)
    if config_changes:
        config = json.loads((path / "config.json").read_text())
        config.update(config_changes)
        (path / "config.json").write_text(json.dumps(config))
    return path


def write_gguf(path, checkpoint, kind="F32", metadata=(), tensors=(), skip=()):
    """Write `checkpoint` with llama.cpp's names and, for Llama, its order of q and k rows.

    kind: type of the matrices. metadata: (key, value) to add or replace. tensors: (name, array) to add.
    skip: GGUF tensor or metadata names to leave out.
    """
    gguf = pytest.importorskip("gguf")
    config = checkpoint.config
    arch = config.architecture
    values = {
        f"{arch}.block_count": config.n_layers,
        f"{arch}.context_length": config.max_position_embeddings,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.n_heads,
        f"{arch}.attention.head_count_kv": config.n_kv_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{arch}.rope.freq_base": config.rope_theta,
        **byte_tokenizer_metadata(json.loads(checkpoint.files["tokenizer.json"])),
        **dict(metadata),
    }
    writer = gguf.GGUFWriter(path, values.pop("general.architecture", arch))
    for key, value in values.items():
        if key not in skip:
            _add(writer, key, value)
    for name in checkpoint.tensor_names:
        gguf_name = _gguf_name(name)
        if gguf_name not in skip:
            array = checkpoint.tensor(name)
            if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
                heads = config.n_heads if "q_proj" in name else config.n_kv_heads
                array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
            qtype = gguf.GGMLQuantizationType[kind if array.ndim == 2 else "F32"]
            writer.add_tensor(gguf_name, gguf.quants.quantize(array, qtype), raw_dtype=qtype)
    for name, array in tensors:
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_tokenizer_metadata(tokenizer: dict) -> dict:
    """`tokenizer.ggml.*` of the byte-level tokenizer of random models, with one merge: a GGUF needs some."""
    specials = {token["id"] for token in tokenizer["added_tokens"]}
    vocab = tokenizer["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.get)
    tokens[259] = "he"
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if i in specials else 1 for i in range(len(tokens))],
        "tokenizer.ggml.merges": ["h e"],
        "tokenizer.ggml.eos_token_id": 258,
    }


def _add(writer, key, value):
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _gguf_name(name: str) -> str:
    for canonical, short in (
        ("model.layers.", "blk."),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.", "attn_"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ):
        name = name.replace(canonical, short)
    return name


@functools.cache
def demo() -> Checkpoint:
    """The demo, opened once: it takes seconds."""
    return open_checkpoint("demo")


def same_tensors(found, expected) -> None:
    assert found.tensor_names == expected.tensor_names
    for name in expected.tensor_names:
        np.testing.assert_array_equal(found.tensor(name), expected.tensor(name), err_msg=name)
