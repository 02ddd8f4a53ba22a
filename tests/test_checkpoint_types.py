"""A folder with sound JSON of wrong types or absurd sizes, or with something else in place of its files."""

from __future__ import annotations

import json
import os

import pytest

pytest.importorskip("gguf", reason="export needs gguf")

from edge_kit.export.checkpoint import open_checkpoint
from edge_kit.export.checkpoint.save import write_hf_folder

from lite_runtime.errors import FileFormatError


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    write_hf_folder(open_checkpoint("random:tiny"), path)
    return path


def change(path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def refused(folder) -> str:
    with pytest.raises(FileFormatError) as caught:
        open_checkpoint(str(folder))
    return str(caught.value)


WINDOW = {"use_sliding_window": True, "sliding_window": 5}


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"architectures": 3}, "architectures is 3"),
        ({"architectures": "LlamaForCausalLM"}, "expected a list of names"),
        ({"architectures": [["x"]]}, "architectures"),
        ({"architectures": [{}]}, "architectures"),
        ({"num_hidden_layers": 10**9}, "is 1000000000; expected a whole number from 1 to 10000"),
        ({"head_dim": 10**12}, "head_dim"),
        ({"vocab_size": 10**30}, "vocab_size"),
        ({"max_position_embeddings": 10**30}, "max_position_embeddings"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"rope_theta": 1e-300}, "rope_theta"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps"),
        ({"rms_norm_eps": 1e300}, "rms_norm_eps"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 10**400}}, "needs a positive factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": float("inf")}}, "needs a positive factor"),
        ({**WINDOW, "sliding_window": "x"}, "sliding_window is 'x'"),
        ({**WINDOW, "max_window_layers": "x"}, "max_window_layers is 'x'"),
        ({**WINDOW, "max_position_embeddings": "x"}, "max_position_embeddings is 'x'"),
    ],
)
def test_config_of_wrong_types(folder, changes, word):
    change(folder / "config.json", **changes)
    message = refused(folder)
    assert "config.json" in message and word in message


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"vocab": 3}},
        {"model": {"vocab": {"a": "x"}}},
        {"model": {"vocab": {"a": None}}},
        {"model": {"vocab": {"a": 1.5}}},
        {"added_tokens": 3},
        {"added_tokens": [3]},
        {"added_tokens": [{}]},
        {"added_tokens": [{"id": "x"}]},
        {"added_tokens": {"a": 1}},
    ],
)
def test_vocabulary_of_wrong_types(folder, changes):
    change(folder / "tokenizer.json", **changes)
    assert "tokenizer.json: damaged vocabulary or added_tokens" in refused(folder)


NAMES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "LICENSE")


@pytest.mark.parametrize("name", NAMES)
def test_folder_or_pipe_in_place_of_a_file(folder, name):
    path = folder / name
    path.unlink(missing_ok=True)
    for make, unmake in ((os.mkdir, os.rmdir), (os.mkfifo, os.unlink)):
        make(path)
        assert f"{name}: expected a file" in refused(folder)
        unmake(path)


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_link_whose_file_was_not_downloaded(folder, name):
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("../../blobs/0123")
    assert f"{name}: links to ../../blobs/0123, which is missing" in refused(folder)


def test_template_that_is_no_utf8(folder):
    (folder / "chat_template.jinja").write_bytes(b"ab\xff")
    assert "chat_template.jinja: no UTF-8 text (byte 2)" in refused(folder)


@pytest.mark.parametrize("shard", ["", ".", ".."])
def test_an_index_that_names_a_folder(folder, shard):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    assert str(folder) in refused(folder)
