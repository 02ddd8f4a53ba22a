"""A Hugging Face folder: config.json, safetensors (one file or shards), tokenizer files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from lite_runtime.errors import FileFormatError, UnsupportedError

from .base import Checkpoint
from .config import DecoderConfig, tensor_shapes
from .file_kinds import read_json_object, reject_impostor, to_json
from .hf_config import config_from_hf
from .safetensors_file import SafetensorsFile

INDEX = "model.safetensors.index.json"
# Buffers that old checkpoints store although they follow from the config.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


class HfFolder(Checkpoint):
    """A Llama or Qwen2 model as `save_pretrained` or a Hub download leaves it."""

    def __init__(self, folder: Path):
        if not (folder / "config.json").exists():
            raise FileFormatError(
                f"{folder}: no config.json here; expected a Hugging Face model folder{_hint(folder)}"
            )
        _refuse_unfinished_download(folder)
        raw_config = read_json_object(folder / "config.json")
        config = config_from_hf(raw_config, folder.resolve().name, str(folder / "config.json"))
        files = _text_files(folder, raw_config, config)
        self._tensor_file = _locate_tensors(folder, config)
        super().__init__(config, files, str(folder))

    def _read(self, name: str) -> np.ndarray:
        return self._tensor_file[name].read(name)


def _hint(folder: Path) -> str:
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    return f" (for a GGUF give the file itself: {folder / ggufs[0]})" if ggufs else ""


def _refuse_unfinished_download(folder: Path) -> None:
    unfinished = sorted(folder.rglob("*.incomplete"))
    if unfinished:
        raise FileFormatError(f"{folder}: the download is not finished ({unfinished[0].name} is still there)")
    for path in sorted(folder.iterdir()):  # the Hugging Face cache links to what it holds elsewhere
        if path.is_symlink() and not path.exists():
            raise FileFormatError(
                f"{path}: links to {os.readlink(path)}, which is missing; download the model again"
            )


def _missing(folder: Path, name: str, why: str) -> FileFormatError:
    """A missing file; names a download that the Hugging Face cache has not finished, if there is one."""
    blobs = folder.resolve().parent.parent / "blobs"
    unfinished = sorted(blobs.glob("*.incomplete")) if blobs.is_dir() else []
    note = f"; its download is not finished ({unfinished[0].name} in {blobs})" if unfinished else ""
    return FileFormatError(f"{folder}: {name} is missing ({why}){note}; download the model again")


def _locate_tensors(folder: Path, config: DecoderConfig) -> dict[str, SafetensorsFile]:
    """Tensor name → the file that holds it, with names and shapes held against the config."""
    tensor_file: dict[str, SafetensorsFile] = {}
    for file in _open_files(folder):
        for name in file.entries:
            if name in tensor_file:
                raise FileFormatError(f"{file.path}: tensor {name} is also in {tensor_file[name].path.name}")
            tensor_file[name] = file
    expected = tensor_shapes(config)
    missing = [name for name in expected if name not in tensor_file]
    if missing:
        raise FileFormatError(
            f"{folder}: tensor {missing[0]} is missing "
            f"({len(missing)} of the {len(expected)} that config.json implies)"
        )
    for name, shape in expected.items():
        entry = tensor_file[name].entries[name]
        if entry.shape != shape:
            raise FileFormatError(
                f"{tensor_file[name].path}: tensor {name} has shape {list(entry.shape)}, "
                f"config.json implies {list(shape)}"
            )
    for name in tensor_file:
        known = (
            name in expected or (config.tied_head and name == "lm_head.weight") or _DERIVED.fullmatch(name)
        )
        if not known:
            raise UnsupportedError(
                f"{tensor_file[name].path}: tensor {name} is not part of a {config.architecture} decoder; "
                f"this model computes something that the kit does not"
            )
    return tensor_file


def _open_files(folder: Path) -> list[SafetensorsFile]:
    if (folder / "model.safetensors").exists():
        return [SafetensorsFile(folder / "model.safetensors")]
    if not (folder / INDEX).exists():
        other = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth"))
        if other:
            raise UnsupportedError(f"{folder}: weights in {other[0]} are not read; expected .safetensors")
        raise _missing(folder, "model.safetensors", f"and there is no {INDEX} either")
    weight_map = read_json_object(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FileFormatError(f"{folder / INDEX}: has no weight_map")
    files = []
    for shard in sorted(set(map(str, weight_map.values()))):
        if Path(shard).name != shard:
            raise FileFormatError(f"{folder / INDEX}: names a shard outside the folder: {shard}")
        if not (folder / shard).exists():
            raise _missing(folder, shard, f"{INDEX} lists it")
        files.append(SafetensorsFile(folder / shard))
    held = {file.path.name: file.entries for file in files}
    for name, shard in weight_map.items():
        if name not in held[shard]:
            raise FileFormatError(f"{folder / shard}: tensor {name} is missing ({INDEX} says it is there)")
    return files


def _text_files(folder: Path, raw_config: dict, config: DecoderConfig) -> dict[str, bytes]:
    tokenizer_path = folder / "tokenizer.json"
    if not tokenizer_path.exists():
        others = [name for name in ("tokenizer.model", "vocab.json") if (folder / name).exists()]
        why = f"{others[0]} alone: transformers' save_pretrained makes it" if others else "not there"
        raise _missing(folder, "tokenizer.json", why)
    _check_vocabulary(read_json_object(tokenizer_path), config, tokenizer_path)
    generation = folder / "generation_config.json"
    if generation.exists():
        generation_config = read_json_object(generation)
    else:
        generation_config = {
            key: raw_config[key]
            for key in ("bos_token_id", "eos_token_id")
            if raw_config.get(key) is not None
        }
    files = {
        "config.json": (folder / "config.json").read_bytes(),
        "tokenizer.json": tokenizer_path.read_bytes(),
        "tokenizer_config.json": to_json(_tokenizer_config(folder)),
        "generation_config.json": to_json(generation_config),
    }
    if (folder / "LICENSE").exists():
        reject_impostor(folder / "LICENSE")
        files["LICENSE"] = (folder / "LICENSE").read_bytes()
    return files


def _tokenizer_config(folder: Path) -> dict:
    """tokenizer_config.json with the chat template inside, wherever the folder keeps it."""
    path = folder / "tokenizer_config.json"
    tokenizer_config = read_json_object(path) if path.exists() else {}
    if (folder / "chat_template.jinja").exists():
        reject_impostor(folder / "chat_template.jinja")
        template = folder / "chat_template.jinja"
        try:
            tokenizer_config["chat_template"] = template.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{template}: no UTF-8 text (byte {error.start})") from None
    elif "chat_template" not in tokenizer_config and (folder / "chat_template.json").exists():
        tokenizer_config.update(read_json_object(folder / "chat_template.json"))
    return tokenizer_config


def _check_vocabulary(tokenizer: dict, config: DecoderConfig, path: Path) -> None:
    model = tokenizer.get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        raise FileFormatError(f"{path}: has no model.vocab; expected a Hugging Face tokenizer")
    vocab = model["vocab"]
    try:
        ids = list(vocab.values()) if isinstance(vocab, dict) else [len(vocab) - 1]
        ids += [token["id"] for token in tokenizer.get("added_tokens") or []]
        largest = max(ids, default=-1)
        if not all(type(i) is int for i in ids):
            raise TypeError("an id that is no whole number")
    except (TypeError, KeyError) as error:
        raise FileFormatError(f"{path}: damaged vocabulary or added_tokens: {error}") from None
    if largest >= config.vocab_size:
        raise FileFormatError(
            f"{path}: token id {largest} is beyond the model's vocab_size {config.vocab_size}; "
            "the tokenizer belongs to another model"
        )
