"""One checkpoint, written once as a bf16 Hugging Face folder and converted for every engine."""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path

from benchmarks.engines import base, edge_kit
from lite_runtime.errors import EdgeKitError, UsageError

from . import environments

DISK_BYTES = 15_000_000_000  # the most that one run may need
_DONE = ".converted"


class Models:
    """The converted models of one checkpoint in the work folder.

    spec: `demo`, `random:NAME`, a checkpoint, or a `.nb` file, whose INT8 weights are what everyone gets.
    """

    def __init__(self, spec: str, work: Path):
        self.spec = spec
        self._work = work
        self._label = _label(spec)
        self.hf_folder = work / "hf" / self._label
        self._made = []

    def write_hf(self) -> None:
        """The Hugging Face folder, unless it is there already."""
        from edge_kit.export.checkpoint.save import write_hf_folder

        from benchmarks.nb_checkpoint import open_model

        if not self.hf_folder.is_dir():
            checkpoint = open_model(self.spec)
            unfinished = self.hf_folder.with_name(self._label + ".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            self._made += [self.hf_folder, unfinished]
            write_hf_folder(checkpoint, unfinished, "bfloat16")
            unfinished.rename(self.hf_folder)

    @property
    def config(self) -> dict:
        return base.read_config(self.hf_folder)

    def weight_bytes(self) -> int:
        """Bytes of all weights at 8 bits."""
        return sum(path.stat().st_size for path in self.hf_folder.glob("*.safetensors")) // 2

    def folder(self, engine: base.Engine, quant: str) -> Path:
        return environments.folder_of(engine, self._work) / f"{self._label}-{quant}"

    def convert(self, engine: base.Engine, quant: str) -> Path:
        """The folder with the engine's own model, made if it is not there. EngineError if that fails."""
        folder = self.folder(engine, quant)
        if (folder / _DONE).is_file():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._made.append(folder)
        try:
            if engine.name == "edge-kit" and self.spec.endswith(".nb"):
                (folder / edge_kit.MODEL).symlink_to(os.path.abspath(self.spec))
            else:
                engine.convert(self.hf_folder, folder, quant, environments.python_of(engine, self._work))
            (folder / _DONE).touch()
        except (base.EngineError, OSError, EdgeKitError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise base.EngineError(f"{engine.name}: conversion to {quant} failed: {error}") from None
        return folder

    def remove_hf(self, keep: bool) -> None:
        """Once everything is converted: makes room, unless the folder was there before or is to be kept."""
        if self.hf_folder in self._made and not keep:
            shutil.rmtree(self.hf_folder)
            self._made.remove(self.hf_folder)

    def remove(self) -> None:
        """Deletes what this run has made of the checkpoint."""
        for folder in self._made:
            shutil.rmtree(folder, ignore_errors=True)
        self._made.clear()


def _label(spec: str) -> str:
    """A folder's name for a checkpoint; of a file or folder, another one once it is changed."""
    if spec == "demo" or spec.startswith("random:"):
        return "".join(c if c.isalnum() or c in "-." else "-" for c in spec)
    path = Path(spec).resolve()
    if not spec or not path.exists():
        raise UsageError(f"--model {spec!r} does not exist: expected demo, random:NAME, a file or a folder")
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    state = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    name = "".join(c if c.isalnum() or c in "-." else "-" for c in path.name)
    return f"{name}-{zlib.crc32(repr(state).encode()):08x}"


def require_disk(work: Path) -> None:
    """UsageError unless the work folder's disk has room for a run."""
    free = shutil.disk_usage(work).free
    if free < DISK_BYTES:
        raise UsageError(
            f"{work}: {free / 1e9:.1f} GB free, a comparison needs {DISK_BYTES / 1e9:.0f} GB: "
            "free some, or choose another disk with --work"
        )
