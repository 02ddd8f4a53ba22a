"""MNN's LLM runtime: 8 bits per channel or 4 bits in blocks of 64, activations at low precision."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from . import base

_BLOCK = {"int8": 0, "int4": 64}  # weights per scale along K; 0 = the whole row
# The exporter finds its parts by their place. MNN's converter, when first used, would install a package and
# report the use to its maker: without that module it works silently.
_EXPORT = """
import importlib.util, sys
sys.modules["MNN.tools.utils.log"] = None
sys.path.insert(0, importlib.util.find_spec("llmexport").submodule_search_locations[0])
import llmexport
llmexport.main()
"""


class Mnn(base.Engine):
    name = "mnn"
    quants = ("int8", "int4")
    requirements = ("MNN==3.6.1", "llmexport==0.0.5", "torch==2.13.0", "transformers==5.24.0", "onnx==1.23.2")
    modules = ("numpy", "MNN.llm")

    def exact(self, quant: str) -> str | None:
        return "exact"

    def convert(self, hf_folder: Path, out_folder: Path, quant: str, python: str) -> None:
        command = [python, "-c", _EXPORT, "--path", hf_folder.resolve(), "--export", "mnn"]
        command += [
            "--quant_bit",
            quant[3:],
            "--quant_block",
            _BLOCK[quant],
            "--dst_path",
            out_folder.resolve(),
        ]
        base.run_tool(command, out_folder.with_suffix(".log"), cwd=out_folder)
        shutil.rmtree(out_folder / "onnx", ignore_errors=True)

    def load(self, folder: str, quant: str, threads: int) -> None:
        import MNN.llm

        effort = "high" if quant == "exact" else "low"  # low: activations rounded to int8
        self._folder = Path(folder)
        self._llm = MNN.llm.create(str(self._folder / "config.json"))
        self._llm.set_config(
            {
                "backend_type": "cpu",
                "thread_num": threads,
                "precision": effort,
                "memory": effort,
                "use_mmap": False,
                "reuse_kv": False,
            }
        )
        self._llm.load()

    def _next(self, ids: list) -> int:
        """Appends `ids` to the context; gives the id of the highest logit."""
        import numpy

        return int(numpy.asarray(self._llm.forward(ids).read()).reshape(-1).argmax())

    def run(self, ids: list, n_new: int) -> list:
        self._llm.reset()
        seconds, new = [], list(ids)
        for _ in range(n_new):
            started = time.perf_counter()
            new = [self._next(new)]
            seconds.append(time.perf_counter() - started)
        return seconds

    def top1(self, ids: list) -> list:
        self._llm.reset()
        return [self._next([i]) for i in ids]

    def versions(self) -> dict:
        return {"MNN": base.package_version("MNN")}

    def bytes_per_token(self) -> int | None:
        """All weights but the embedding, which lies in a file of its own."""
        return (self._folder / "llm.mnn.weight").stat().st_size
