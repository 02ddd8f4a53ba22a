"""This kit's runtime, on the `.nb` that its exporter's built-in writer makes."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path

from . import base

MODEL = "model.nb"
LONG_CONTEXT = 8192  # what the goals on long contexts ask for; memory is taken only as the cache grows


class EdgeKit(base.Engine):
    name = "edge-kit"
    quants = ("int8",)
    python = None
    modules = ("numpy", "lite_runtime")

    def stamp(self) -> list:
        from lite_runtime import _native

        return [f"library {zlib.crc32(_native.library_path().read_bytes()):08x}"]

    def convert(self, hf_folder: Path, out_folder: Path, quant: str, python: str) -> None:
        target = "arm" if os.uname().machine in ("aarch64", "arm64") else "x86"
        base.export_nb(hf_folder, out_folder / MODEL, quant, target, out_folder.with_suffix(".log"))

    def load(self, folder: str, quant: str, threads: int) -> None:
        import lite_runtime

        # "fp32" is not timed: it is the reference where no fp32 engine is installed.
        mode = "exact" if quant == "fp32" else "int8"
        self.model = lite_runtime.load(Path(folder) / MODEL, n_threads=threads, n_ctx=LONG_CONTEXT, mode=mode)

    def run(self, ids: list, n_new: int) -> list:
        seconds, new = [], ids
        with self.model.session() as session:
            for _ in range(n_new):
                started = time.perf_counter()
                (logits,) = self.model.forward([(session, new, "last")])
                new = [int(logits.argmax())]
                seconds.append(time.perf_counter() - started)
        return seconds

    def top1(self, ids: list) -> list:
        with self.model.session() as session:
            return session.forward(ids).argmax(axis=1).tolist()

    def versions(self) -> dict:
        import edge_kit

        return {"edge-kit": edge_kit.__version__, "kernel": self.model.info.isa}

    def bytes_per_token(self) -> int | None:
        return self.model.info.parameter_bytes_per_token

    def own_goal(self, name: str, **options) -> dict:
        """Samples of one of the goals that have no peer; see own_goals.py."""
        from . import own_goals

        return own_goals.GOALS[name](self.model, **options)
