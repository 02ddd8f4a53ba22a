"""OpenVINO GenAI: weights compressed to int8 per output, or int4 in groups, by NNCF."""

from __future__ import annotations

import os
import time
from pathlib import Path

from . import base


class OpenVino(base.Engine):
    name = "openvino"
    quants = ("int8", "int4")
    requirements = (
        "torch==2.13.0",
        "torchvision==0.28.0",
        "transformers==5.5.4",
        "optimum-intel==2.2.0",
        "nncf==3.4.0",
        "openvino==2026.4.1",
        "openvino-tokenizers==2026.4.1.0",
        "openvino-genai==2026.4.1.0",
    )
    modules = ("openvino_genai",)
    # "PA", paged attention, is the other back end: equal within the noise at the flagship's shape.
    attention = "SDPA"

    def install(self, python: str, folder: Path) -> None:
        # optimum-intel asks for torchvision, needs it for pictures alone, and its wheel wants another torch.
        command = [python, "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"]
        base.run_tool(command, folder / "install.log")

    def convert(self, hf_folder: Path, out_folder: Path, quant: str, python: str) -> None:
        command = [Path(python).parent / "optimum-cli", "export", "openvino", "--model", hf_folder]
        command += ["--task", "text-generation-with-past", "--weight-format", quant]
        if quant == "int4":
            config = base.read_config(hf_folder)
            sizes = (config["hidden_size"], config["intermediate_size"])
            group = 128 if all(size % 128 == 0 for size in sizes) else 64
            command += ["--group-size", group, "--ratio", "1.0", "--sym"]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        base.run_tool([*command, out_folder], out_folder.with_suffix(".log"), env=environment)
        config = base.read_config(hf_folder)
        # An embedding that is not the head as well is read by single rows of int8, scale and zero point.
        rows = 0 if config.get("tie_word_embeddings") else config["vocab_size"]
        read = (out_folder / "openvino_model.bin").stat().st_size - rows * (config["hidden_size"] + 3)
        base.keep_bytes_per_token(out_folder, read)

    def load(self, folder: str, quant: str, threads: int) -> None:
        import openvino_genai

        self._folder = Path(folder)
        self._pipeline = openvino_genai.LLMPipeline(
            folder,
            "CPU",
            ATTENTION_BACKEND=self.attention,
            INFERENCE_NUM_THREADS=threads,
            PERFORMANCE_HINT="LATENCY",
        )

        class Clock(openvino_genai.StreamerBase):
            """Notes when each token comes."""

            def __init__(self):
                super().__init__()
                self.times = []

            def write(self, tokens):
                now = time.perf_counter()
                self.times += [now] * (len(tokens) if isinstance(tokens, list) else 1)
                return openvino_genai.StreamingStatus.RUNNING

            def end(self):
                pass

        self._clock = Clock

    def _generate(self, ids: list, n_new: int, clock=None) -> list:
        import numpy
        import openvino
        import openvino_genai

        config = openvino_genai.GenerationConfig(
            max_new_tokens=n_new, min_new_tokens=n_new, ignore_eos=True, do_sample=False
        )
        prompt = openvino.Tensor(numpy.array([ids], numpy.int64))
        mask = openvino.Tensor(numpy.ones((1, len(ids)), numpy.int64))
        inputs = openvino_genai.TokenizedInputs(prompt, mask)
        return list(self._pipeline.generate(inputs, config, clock).tokens[0])

    def run(self, ids: list, n_new: int) -> list:
        clock = self._clock()
        started = time.perf_counter()
        self._generate(ids, n_new, clock)
        return [after - before for before, after in zip([started, *clock.times], clock.times)]

    def top1(self, ids: list) -> list:
        return [self._generate(ids[: i + 1], 1)[0] for i in range(len(ids))]

    def versions(self) -> dict:
        import openvino

        versions = {name: base.package_version(name) for name in ("openvino", "openvino_genai")}
        # On CPUs with AMX the default is bf16, whose products take its tiles.
        precision = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").to_string()
        return {**versions, "attention": self.attention, "precision": precision}

    def bytes_per_token(self) -> int | None:
        return base.kept_bytes_per_token(self._folder)
