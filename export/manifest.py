"""manifest.json in the bundle: where the file comes from and what it was made for."""

from __future__ import annotations

from pathlib import Path

import edge_kit
from edge_kit import targets


def build_manifest(checkpoint, summary, model_digest: str) -> dict:
    """No time and no path stands in it, so equal inputs give equal files."""
    config = checkpoint.config
    manifest = {
        "format": 1,
        "kit_version": edge_kit.__version__,
        "name": config.name,
        "architecture": config.architecture,
        "source": _without_folder(checkpoint.source),
        "target": summary.target,
        "defaults": {"threads": targets.get(summary.target).threads},
        "quant": summary.quant,
        "max_position_embeddings": config.max_position_embeddings,
        "model_digest": model_digest,  # sha256 of all bytes before the bundle
    }
    if summary.chat_format is not None:
        manifest["chat_format"] = summary.chat_format  # its fields: ChatFormat in chat_format.py
    return manifest


def _without_folder(source: str) -> str:
    """A file's or folder's own name; what is not a path ("random:tiny") as it is."""
    return source if source.startswith("random:") else Path(source).absolute().name
