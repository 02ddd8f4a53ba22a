"""Models that tests run, exported once for each state of the exporter's sources and kept under build/."""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "build" / "test-models"


@functools.cache
def _exporter_digest() -> str:
    """Of all sources that shape an exported file: a model of older sources is never taken."""
    digest = hashlib.sha256()
    for folder in ("edge_kit", "export", "lite_runtime", "targets"):
        for source in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(source.relative_to(ROOT)).encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:12]


def exported_path(model: str, target: str = "x86", quant: str = "int8") -> Path:
    """Where the file of these options lies, or would."""
    return MODELS / f"{model.replace(':', '-')}.{target}.{quant}.{_exporter_digest()}.nb"


def export(model: str, target: str = "x86", quant: str = "int8") -> Path:
    """The file, made first if it is not there. Raises RuntimeError with what the exporter said."""
    path = exported_path(model, target, quant)
    if not path.exists():
        MODELS.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "edge_kit", "export", "--model", model, "--target", target,
                   "--quant", quant, "--optimizer", "builtin", "--out", str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return path
