"""Hugging Face folders: what is written is read, and each kind of bad folder is named for what it is."""

from __future__ import annotations

import json

import numpy as np
import pytest
from checkpoint_files import LLAMA3_SCALING, folder, llama_model, model, refused, same_tensors
from edge_kit.export.checkpoint import open_checkpoint
from edge_kit.export.checkpoint.rope import llama3_factors
from edge_kit.export.checkpoint.save import to_bf16_bits, write_hf_folder

from lite_runtime.errors import UnsupportedError, UsageError

PROJ = "model.layers.1.mlp.down_proj.weight"


def rewrite_header(path, change, tail=lambda data: data):
    """Rewrite a safetensors file with `change` applied to its header and `tail` to its data."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    change(header)
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + tail(raw[8 + size :]))


def cast_file(path, dtype, encode):
    """Rewrite a float32 safetensors file in another dtype."""

    def halve(header):
        for name, item in header.items():
            if name != "__metadata__":
                item.update(dtype=dtype, data_offsets=[offset // 2 for offset in item["data_offsets"]])

    rewrite_header(path, halve, lambda data: encode(np.frombuffer(data, "<f4")).tobytes())


# --- sound folders


def test_fp32_one_file(tmp_path):
    found = open_checkpoint(str(folder(tmp_path)))
    assert found.config.qkv_bias and not found.config.tied_head and found.config.name == "model"
    same_tensors(found, model())
    assert set(found.files) == {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    }
    assert "<|im_start|>" in json.loads(found.files["tokenizer_config.json"])["chat_template"]


def test_shards(tmp_path):
    write_hf_folder(model(), tmp_path / "m", max_shard_bytes=100_000)
    assert len(list((tmp_path / "m").glob("model-*-of-*.safetensors"))) > 3
    same_tensors(open_checkpoint(str(tmp_path / "m")), model())


def test_fp16(tmp_path):
    path = folder(tmp_path)
    cast_file(path / "model.safetensors", "F16", lambda values: values.astype("<f2"))
    found = open_checkpoint(str(path))
    for name in found.tensor_names:
        np.testing.assert_array_equal(
            found.tensor(name), model().tensor(name).astype(np.float16).astype(np.float32)
        )


def test_bf16_is_the_nearest_with_ties_to_even(tmp_path):
    found = open_checkpoint(str(folder(tmp_path, "bfloat16")))
    for name in found.tensor_names:
        exact, read = model().tensor(name), found.tensor(name)
        assert not (read.view(np.uint32) & 0xFFFF).any()
        assert (np.abs(read - exact) <= np.abs(exact) * 2.0**-8).all()
    ties = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF817FFF], np.uint32).view(np.float32)
    assert [hex(bits) for bits in to_bf16_bits(ties)] == ["0x3f80", "0x3f82", "0x3f81", "0xbf81"]


def test_llama_tied_with_llama3_scaling(tmp_path):
    write_hf_folder(llama_model(rope_scaling=LLAMA3_SCALING), tmp_path / "m")
    found = open_checkpoint(str(tmp_path / "m"))
    assert (found.config.architecture, found.config.tied_head, found.config.qkv_bias) == (
        "llama",
        True,
        False,
    )
    assert found.config.rope_scaling == LLAMA3_SCALING and found.config.rms_norm_eps == 1e-5
    plain = llama_model().config.rope_inv_freq
    assert found.config.rope_inv_freq[0] == plain[0]  # short waves stay
    np.testing.assert_allclose(found.config.rope_inv_freq[-1], plain[-1] / 8, rtol=1e-6)  # long ones stretch


def test_llama3_ramp():
    """2.5 turns over the original context lie half way between 1 and 4: 1 / (0.5 / 8 + 0.5)."""
    inv_freq = np.array([4.0, 2.5, 1.0]) * 2 * np.pi / 8192
    np.testing.assert_allclose(llama3_factors(inv_freq, LLAMA3_SCALING, "test"), [1, 16 / 9, 8], rtol=1e-12)


def test_linear_scaling_and_rope_parameters_of_transformers_5(tmp_path):
    path = folder(tmp_path, rope_scaling={"type": "linear", "factor": 4.0})
    np.testing.assert_allclose(
        open_checkpoint(str(path)).config.rope_inv_freq, model().config.rope_inv_freq / 4, rtol=1e-6
    )
    other = folder(
        tmp_path / "b", rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 5e5}
    )
    assert open_checkpoint(str(other)).config.rope_theta == 5e5


def test_sliding_window_that_is_off_is_no_obstacle(tmp_path):
    path = folder(tmp_path, sliding_window=4096, use_sliding_window=False, max_window_layers=1)
    assert open_checkpoint(str(path)).config.n_layers == 2


def test_chat_template_of_its_own_file_and_eos_of_config(tmp_path):
    path = folder(tmp_path, eos_token_id=258)
    (path / "chat_template.jinja").write_text("{{ messages }}")
    (path / "generation_config.json").unlink()
    (path / "LICENSE").write_text("free")
    files = open_checkpoint(str(path)).files
    assert json.loads(files["tokenizer_config.json"])["chat_template"] == "{{ messages }}"
    assert json.loads(files["generation_config.json"]) == {"eos_token_id": 258}
    assert files["LICENSE"] == b"free"


def test_writer_leaves_an_existing_folder_alone(tmp_path):
    path = folder(tmp_path)
    with pytest.raises(UsageError, match="already there"):
        write_hf_folder(model(), path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


# --- configs that would be computed wrongly


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            {"architectures": ["MistralForCausalLM"]},
            ["MistralForCausalLM", "LlamaForCausalLM, Qwen2ForCausalLM"],
        ),
        ({"architectures": ["Qwen3ForCausalLM"]}, ["Qwen3ForCausalLM"]),
        ({"quantization_config": {"quant_method": "gptq"}}, ["already quantized (gptq)"]),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, ["'yarn'", "llama3"]),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, ["'dynamic'"]),
        ({"hidden_act": "gelu"}, ["gelu", "silu"]),
        ({"architectures": ["LlamaForCausalLM"], "attention_bias": True}, ["attention_bias", "o_proj"]),
        ({"architectures": ["LlamaForCausalLM"], "mlp_bias": True}, ["mlp_bias"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor 0.5"]),
        (
            {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 1},
            ["sliding window", "128"],
        ),
        (
            {"use_sliding_window": True, "sliding_window": 128, "layer_types": ["sliding_attention"] * 2},
            ["sliding window"],
        ),
    ],
)
def test_unsupported_config(tmp_path, changes, words):
    message = refused(folder(tmp_path, **changes), UnsupportedError)
    assert "config.json" in message and all(word in message for word in words), message


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"hidden_size": None}, ["hidden_size is missing"]),
        ({"num_hidden_layers": "two"}, ["num_hidden_layers is 'two'"]),
        ({"num_attention_heads": 0}, ["num_attention_heads is 0"]),
        ({"num_key_value_heads": 3}, ["4 heads", "3 key/value"]),
        ({"rope_theta": -1.0}, ["rope_theta is -1.0"]),
        ({"rope_scaling": {"rope_type": "linear"}}, ["'linear'", "factor", "None"]),
        ({"architectures": [], "model_type": None}, ["names no architecture"]),
        ({"vocab_size": 300}, ["token id 330", "vocab_size 300"]),
        ({"intermediate_size": 177}, ["gate_proj", "[176, 64]", "[177, 64]"]),
        ({"num_hidden_layers": 3}, ["model.layers.2.input_layernorm.weight is missing", "12 of the 39"]),
    ],
)
def test_config_that_contradicts_itself_or_the_weights(tmp_path, changes, words):
    message = refused(folder(tmp_path, **changes))
    assert all(word in message for word in words), message


def test_config_missing_or_not_json(tmp_path):
    path = folder(tmp_path)
    (path / "config.json").write_text('{"hidden_size": ')
    assert "not JSON" in refused(path)
    (path / "config.json").write_text("[1]")
    assert "expected a JSON object, found list" in refused(path)
    (path / "config.json").unlink()
    assert "no config.json here" in refused(path)
    (path / "model-q4.gguf").write_bytes(b"GGUF")
    assert "model-q4.gguf" in refused(path)


def test_nothing_there(tmp_path):
    assert "no such folder or file" in refused(tmp_path / "DeepSeek-R1", UsageError)
    (tmp_path / "weights.bin").write_bytes(b"x")
    assert "not a checkpoint" in refused(tmp_path / "weights.bin")


# --- unfinished and wrong downloads


HTML = b"\n<!DOCTYPE html><html><body>Sign in</body></html>"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 988097824\n"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "config.json", "tokenizer_config.json"]
)
@pytest.mark.parametrize("content, word", [(HTML, "HTML page"), (LFS, "git-LFS pointer"), (b"", "is empty")])
def test_impostor(tmp_path, name, content, word):
    path = folder(tmp_path)
    (path / name).write_bytes(content)
    message = refused(path)
    assert word in message and name in message


def test_unfinished_download(tmp_path):
    path = folder(tmp_path)
    unfinished = path / ".cache" / "huggingface" / "download" / "model.safetensors.incomplete"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_bytes(b"x")
    assert "the download is not finished (model.safetensors.incomplete" in refused(path)


def test_hub_cache_with_unfinished_blob(tmp_path):
    hub = tmp_path / "models--org--name"
    (hub / "blobs").mkdir(parents=True)
    (hub / "blobs" / "abc.incomplete").write_bytes(b"x")
    path = folder(hub / "snapshots")
    assert open_checkpoint(str(path))  # a leftover of another revision is no reason to refuse
    (path / "model.safetensors").unlink()
    message = refused(path)
    assert "model.safetensors is missing" in message and "abc.incomplete" in message


def test_no_tokenizer_json(tmp_path):
    path = folder(tmp_path)
    (path / "tokenizer.json").unlink()
    assert "tokenizer.json is missing" in refused(path)
    (path / "tokenizer.model").write_bytes(b"x")
    assert "tokenizer.model alone" in refused(path)


def test_weights_of_another_kind(tmp_path):
    path = folder(tmp_path)
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    assert "pytorch_model.bin" in refused(path, UnsupportedError)


# --- shards and their index


@pytest.fixture
def sharded(tmp_path):
    write_hf_folder(model(), tmp_path / "m", max_shard_bytes=100_000)
    return tmp_path / "m"


def test_missing_shard(sharded):
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    message = refused(sharded)
    assert f"{shard.name} is missing" in message and "lists it" in message


def test_index_that_lies(sharded):
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    first, last = sorted(set(content["weight_map"].values()))[:: len(set(content["weight_map"].values())) - 1]
    name = next(name for name, shard in content["weight_map"].items() if shard == first)
    index.write_text(json.dumps({"weight_map": {**content["weight_map"], name: last}}))
    assert name in refused(sharded)
    index.write_text(json.dumps({"weight_map": {**content["weight_map"], name: "../secret.safetensors"}}))
    assert "outside the folder" in refused(sharded)
    index.write_text("{}")
    assert "no weight_map" in refused(sharded)


# --- damaged safetensors


def test_cut_short_anywhere(tmp_path):
    path = folder(tmp_path)
    whole = (path / "model.safetensors").read_bytes()
    for size in (3, 8, 100, len(whole) // 2, len(whole) - 1):
        (path / "model.safetensors").write_bytes(whole[:size])
        message = refused(path)
        assert "cut" in message, message
    (path / "model.safetensors").write_bytes(whole + b"\0")
    assert "1 bytes follow" in refused(path)


@pytest.mark.parametrize(
    "change",
    [
        {"data_offsets": [0, 1 << 70]},
        {"data_offsets": [-4, 0]},
        {"data_offsets": [8, 4]},
        {"data_offsets": "ab"},
        {"shape": [1 << 62, 1 << 62]},
        {"shape": [True, 1.5]},
        {"shape": None},
        {"dtype": "F16"},
    ],
)
def test_header_with_wrong_numbers(tmp_path, change):
    path = folder(tmp_path)
    rewrite_header(path / "model.safetensors", lambda header: header[PROJ].update(change))
    assert "model.safetensors" in refused(path)


def test_header_that_is_no_object(tmp_path):
    path = folder(tmp_path)
    for header in (b"[]", b"{}x", b'{"a": 1}', b"\xff\xfe", b"[" * 50_000):
        (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        assert "damaged safetensors header" in refused(path)


def test_tensor_missing_or_unknown(tmp_path):
    path = folder(tmp_path)
    rewrite_header(path / "model.safetensors", lambda header: header.update(extra=header.pop(PROJ)))
    message = refused(path)
    assert f"tensor {PROJ} is missing" in message


def test_tensor_that_would_be_ignored(tmp_path):
    path = folder(tmp_path)
    name = "model.layers.0.self_attn.q_norm.weight"

    def add(header):
        end = max(item["data_offsets"][1] for key, item in header.items() if key != "__metadata__")
        header[name] = {"dtype": "F32", "shape": [1], "data_offsets": [end, end + 4]}

    rewrite_header(path / "model.safetensors", add, lambda data: data + bytes(4))
    assert name in refused(path, UnsupportedError)


def test_integer_weights(tmp_path):
    path = folder(tmp_path)
    rewrite_header(path / "model.safetensors", lambda header: header[PROJ].update(dtype="I32"))
    message = refused(path, UnsupportedError)
    assert PROJ in message and "I32" in message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite(tmp_path, value):
    path = folder(tmp_path)

    def poison(data):
        values = np.frombuffer(data, "<f4").copy()
        values[-(331 * 64) + 2 * 64 + 5] = value  # lm_head is the last tensor
        return values.tobytes()

    rewrite_header(path / "model.safetensors", lambda header: None, poison)
    message = refused(path)
    assert "lm_head.weight" in message and "[2, 5]" in message and str(path) in message
