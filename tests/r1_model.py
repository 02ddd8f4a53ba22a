"""random:tiny with the tokenizer and the chat template of R1's distill of Qwen2."""

from __future__ import annotations

from pathlib import Path

from edge_kit.export.checkpoint.file_kinds import to_json
from edge_kit.export.checkpoint.hf_config import config_from_hf, config_to_hf
from edge_kit.export.checkpoint.random_model import MODELS, R1_QWEN_1_5B, RandomModel, random_model
from edge_kit.export.checkpoint.save import write_hf_folder
from edge_kit.export.pipeline import export_model
from edge_kit.export.progress import Progress


def export_r1_tiny(folder: Path) -> Path:
    """The .nb file, made in `folder`."""
    raw = {**MODELS["tiny"], "vocab_size": MODELS[R1_QWEN_1_5B]["vocab_size"]}
    config = config_from_hf(raw, "r1-tiny", "test")
    files = {**random_model(R1_QWEN_1_5B).files, "config.json": to_json(config_to_hf(config))}
    write_hf_folder(RandomModel(config, files, "test"), folder / "checkpoint")
    path = folder / "r1-tiny.nb"
    export_model(str(folder / "checkpoint"), "x86", "int8", "builtin", str(path), Progress(quiet=True))
    return path
