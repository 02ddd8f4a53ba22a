"""What an export needs beyond the device side, checked before any work."""

from __future__ import annotations

import importlib.util
from importlib import metadata

from lite_runtime.errors import UnsupportedError

MODULES = {"paddle": "paddlepaddle", "gguf": "gguf", "flatbuffers": "flatbuffers"}
_PADDLE_VERSIONS = ("3.0", "3.1")  # later ones can no longer write a program that Paddle Lite reads


def missing_distributions() -> list[str]:
    """What pip would have to install, by name."""
    return [name for module, name in MODULES.items() if importlib.util.find_spec(module) is None]


def check() -> None:
    """UnsupportedError saying what to install if the exporter cannot run here."""
    missing = missing_distributions()
    if missing:
        raise UnsupportedError(
            f"export needs {', '.join(missing)}, which this Python lacks; pip install 'edge-kit[export]'"
        )
    version = metadata.version("paddlepaddle")
    if not version.startswith(_PADDLE_VERSIONS):
        raise UnsupportedError(
            f"export needs paddlepaddle 3.0 or 3.1, found {version}: later versions write programs that "
            "Paddle Lite cannot read; pip install paddlepaddle==3.1.1"
        )
