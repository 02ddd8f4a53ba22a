"""The exporter's own decoder as Paddle dygraph: fp32, or INT8 weights that each pass widens."""

from __future__ import annotations

import time
from pathlib import Path

from . import base


class Paddle(base.Engine):
    """Runs in the benchmark's own Python, which has the exporter. Its load quantizes the checkpoint too."""

    name = "paddle"
    quants = ("fp32", "int8")
    python = None
    modules = ("paddle",)

    def convert(self, hf_folder: Path, out_folder: Path, quant: str, python: str) -> None:
        base.link_folder(hf_folder, out_folder)

    def environment(self, threads: int) -> dict:
        return base.thread_variables(threads)

    def load(self, folder: str, quant: str, threads: int) -> None:
        import paddle
        from edge_kit.export.checkpoint import open_checkpoint
        from edge_kit.export.tensors import CheckpointTensors, build_decoder

        paddle.base.core.set_num_threads(threads)
        self._decoder = build_decoder(CheckpointTensors(open_checkpoint(folder), quant))

    def _session(self):
        from edge_kit.export.evaluate import DygraphSession

        return DygraphSession(self._decoder)

    def run(self, ids: list, n_new: int) -> list:
        session, step, seconds = self._session(), ids, []
        while len(seconds) < n_new:
            started = time.perf_counter()
            step = [int(session.forward(step)[-1].argmax())]
            seconds.append(time.perf_counter() - started)
        return seconds

    def top1(self, ids: list) -> list:
        return self._session().forward(ids).argmax(axis=1).tolist()

    def bytes_per_token(self) -> int | None:
        # Of the INT8 weights, though each pass also writes and reads them widened to fp32.
        return sum(
            parameter.size * parameter.element_size()
            for name, parameter in self._decoder.named_parameters()
            if not name.startswith("embed_tokens.")
        )
