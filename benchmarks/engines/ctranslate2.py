"""CTranslate2: int8 weights and activations, packed int8 GEMM of the MKL in its wheel.

With its defaults: neither CT2_FORCE_CPU_ISA=AVX512 nor AMX (MKL_ENABLE_INSTRUCTIONS=AVX512_E4) was faster.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from . import base


class CTranslate2(base.Engine):
    name = "ctranslate2"
    quants = ("int8",)
    requirements = ("ctranslate2==4.8.5", "torch==2.13.0", "transformers==5.24.0")
    modules = ("ctranslate2",)

    def exact(self, quant: str) -> str | None:
        return "float32"

    def convert(self, hf_folder: Path, out_folder: Path, quant: str, python: str) -> None:
        converter = Path(python).parent / "ct2-transformers-converter"
        command = [converter, "--model", hf_folder, "--quantization", quant, "--output_dir", out_folder]
        base.run_tool([*command, "--low_cpu_mem_usage", "--force"], out_folder.with_suffix(".log"))
        config = base.read_config(hf_folder)
        # An embedding that is not the head as well is read by single rows: int8 values and a float per row.
        rows = 0 if config.get("tie_word_embeddings") else config["vocab_size"]
        read = (out_folder / "model.bin").stat().st_size - rows * (config["hidden_size"] + 4)
        base.keep_bytes_per_token(out_folder, read)

    def load(self, folder: str, quant: str, threads: int) -> None:
        import ctranslate2

        self._folder = Path(folder)
        self._generator = ctranslate2.Generator(
            folder, device="cpu", compute_type=quant, inter_threads=1, intra_threads=threads
        )
        self._tokens = json.loads((self._folder / "vocabulary.json").read_text(encoding="utf-8"))

    def run(self, ids: list, n_new: int) -> list:
        times = []

        def step(_result) -> bool:
            times.append(time.perf_counter())
            return False  # go on

        prompt = [self._tokens[i] for i in ids]
        started = time.perf_counter()
        self._generator.generate_batch(
            [prompt],
            max_length=n_new,
            min_length=n_new,
            beam_size=1,
            sampling_topk=1,
            include_prompt_in_result=False,
            callback=step,
        )
        return [after - before for before, after in zip([started, *times], times)]

    def top1(self, ids: list) -> list:
        import numpy

        logits = self._generator.forward_batch([[self._tokens[i] for i in ids]])
        return numpy.asarray(logits)[0].argmax(axis=1).tolist()

    def bytes_per_token(self) -> int | None:
        return base.kept_bytes_per_token(self._folder)
