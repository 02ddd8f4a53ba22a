"""The weights of a `.nb` file as a checkpoint, so that other engines can be given what the file holds."""

from __future__ import annotations

import json

import numpy as np
from edge_kit.export.checkpoint import Checkpoint, open_checkpoint
from edge_kit.export.checkpoint.hf_config import config_from_hf

from edge_kit.nb import tiles
from edge_kit.nb.bundle import read_bundle
from edge_kit.nb.reader import NbFile


class NbCheckpoint(Checkpoint):
    """An exported file: INT8 weights are widened to fp32 with their scales, which loses nothing."""

    def __init__(self, path):
        files = read_bundle(path)
        name = json.loads(files["manifest.json"])["name"]
        config = config_from_hf(json.loads(files["config.json"]), name, str(path))
        super().__init__(config, files, str(path))
        self._file = NbFile(path)

    def _read(self, name: str) -> np.ndarray:
        stored = name[len("model.") :] if name.startswith("model.") else name
        values = self._file.array(stored)
        if values.dtype != np.int8:
            return np.array(values, np.float32)
        if values.ndim == 4:
            values = tiles.unpack(values)
        scale = self._file.array(f"{stored.rsplit('.', 1)[0]}.scale")
        return values * scale.reshape(-1, 1)


def open_model(spec: str) -> Checkpoint:
    """The checkpoint of `spec`: a `.nb` file, or whatever the exporter reads."""
    return NbCheckpoint(spec) if spec.endswith(".nb") else open_checkpoint(spec)
