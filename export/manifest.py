"""manifest.json in the bundle: where the file comes from and what it was made for."""

from __future__ import annotations

import edge_kit


def build_manifest(checkpoint, summary, model_digest: str) -> dict:
    """No time and no path stands in it, so equal inputs give equal files."""
    config = checkpoint.config
    return {
        "format": 1,
        "kit_version": edge_kit.__version__,
        "name": config.name,
        "architecture": config.architecture,
        "source": checkpoint.source,
        "target": summary.target,
        "quant": summary.quant,
        "max_position_embeddings": config.max_position_embeddings,
        "model_digest": model_digest,  # sha256 of all bytes before the bundle
    }
