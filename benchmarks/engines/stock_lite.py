"""Stock Paddle Lite on an INT8 `.nb` file of this kit for x86, in a Python 3.10."""

from __future__ import annotations

import time
from pathlib import Path

from . import base


class StockLite(base.Engine):
    name = "stock-lite"
    quants = ("int8",)
    python = "3.10"
    requirements = ("paddlelite==2.13rc0", "numpy<2")
    modules = ("paddlelite.lite",)

    def convert(self, hf_folder: Path, out_folder: Path, quant: str, python: str) -> None:
        base.export_nb(hf_folder, out_folder / "model.nb", quant, "x86", out_folder.with_suffix(".log"))

    def environment(self, threads: int) -> dict:
        return base.thread_variables(threads)

    def load(self, folder: str, quant: str, threads: int) -> None:
        from edge_kit.interface import Interface
        from edge_kit.nb.reader import NbFile
        from edge_kit.stock_worker import Worker

        path = str(Path(folder) / "model.nb")
        with NbFile(path) as file:
            self._shapes = Interface(file).cache_shapes
            self._bytes = sum(
                tensor.nbytes for name, tensor in file.tensors.items() if not name.startswith("embed_tokens.")
            )
        self._worker = Worker(path)

    def _forward(self, ids: list, length: int):
        """Logits [T, vocabulary] of `ids` after the `length` tokens of the only session."""
        import numpy

        from edge_kit.interface import causal_mask

        request = {
            "session": 0,
            "input_ids": numpy.array(ids, numpy.int64),
            "positions": numpy.arange(length, length + len(ids), dtype=numpy.int64),
            "mask": causal_mask(length, len(ids)),
            "cache_shapes": self._shapes,
        }
        return self._worker.forward(request)["logits"]

    def run(self, ids: list, n_new: int) -> list:
        self._worker.free({"session": 0})
        step, length, seconds = ids, 0, []
        while len(seconds) < n_new:
            started = time.perf_counter()
            logits = self._forward(step, length)
            length += len(step)
            step = [int(logits[-1].argmax())]
            seconds.append(time.perf_counter() - started)
        return seconds

    def top1(self, ids: list) -> list:
        self._worker.free({"session": 0})
        return self._forward(ids, 0).argmax(axis=1).tolist()

    def versions(self) -> dict:
        return {name: base.package_version(name) for name in ("paddlelite", "numpy")}

    def bytes_per_token(self) -> int | None:
        return self._bytes
