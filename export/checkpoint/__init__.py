"""Where weights come from: a Hugging Face folder, a GGUF file, the demo, or a random model."""

from __future__ import annotations

from pathlib import Path

from lite_runtime.errors import FileFormatError, UsageError

from .base import Checkpoint
from .config import DecoderConfig, tensor_shapes

__all__ = ["Checkpoint", "DecoderConfig", "open_checkpoint", "tensor_shapes"]


def open_checkpoint(spec: str) -> Checkpoint:
    """Open `spec`: a Hugging Face folder, a .gguf file, `demo`, or `random:NAME`.

    Names and shapes of all tensors are checked here; their values when they are read.
    Raises UsageError (no such thing), FileFormatError (damaged), UnsupportedError (sound, but not computed).
    """
    if spec == "demo":
        return _open_demo()
    if spec.startswith("random:"):
        from .random_model import random_model

        return random_model(spec[len("random:") :])
    path = Path(spec).expanduser()
    if path.is_dir():
        from .hf_folder import HfFolder

        return HfFolder(path)
    if path.suffix.lower() == ".gguf" and path.is_file():
        from .gguf_file import GgufFile

        return GgufFile(path)
    expected = "a Hugging Face folder, a .gguf file, `demo` or `random:NAME`"
    if path.exists():
        raise FileFormatError(f"{path}: not a checkpoint; expected {expected}")
    raise UsageError(f"{spec}: no such folder or file; expected {expected}. Download the model first")


def _open_demo() -> Checkpoint:
    """SmolLM2-135M-Instruct (Apache-2.0), a Q4_1 GGUF of 98 MB, fetched once into the cache."""
    from .fetch import SMOLLM2_GGUF, SMOLLM2_LICENSE, fetch
    from .gguf_file import GgufFile

    gguf_path, license_path = fetch(SMOLLM2_GGUF, SMOLLM2_LICENSE)
    checkpoint = GgufFile(gguf_path, name="SmolLM2-135M-Instruct")
    checkpoint.files["LICENSE"] = license_path.read_bytes()
    return checkpoint
