"""Hugging Face transformers on PyTorch, eager with fused attention: nothing converted, fp32 or bf16."""

from __future__ import annotations

import time
from pathlib import Path

from . import base


class Transformers(base.Engine):
    name = "transformers"
    quants = ("bf16", "fp32")
    requirements = ("torch==2.13.0", "transformers==5.24.0")
    # transformers imports a model's code when it is first asked for.
    modules = ("torch", "transformers", "transformers.models.llama.modeling_llama")
    modules += ("transformers.models.qwen2.modeling_qwen2",)

    def convert(self, hf_folder: Path, out_folder: Path, quant: str, python: str) -> None:
        base.link_folder(hf_folder, out_folder)

    def load(self, folder: str, quant: str, threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[quant]
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa"
        ).eval()

    def run(self, ids: list, n_new: int) -> list:
        import torch
        import transformers

        cache = transformers.DynamicCache(config=self._model.config)
        step, seconds = torch.tensor([ids]), []
        while len(seconds) < n_new:
            started = time.perf_counter()
            logits = self._model(step, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            step = logits[:, -1].argmax(-1, keepdim=True)
            step[0].item()
            seconds.append(time.perf_counter() - started)
        return seconds

    def top1(self, ids: list) -> list:
        import torch

        return self._model(torch.tensor([ids])).logits[0].argmax(-1).tolist()

    def versions(self) -> dict:
        import torch

        capability = torch.backends.cpu.get_cpu_capability()
        versions = {name: base.package_version(name) for name in ("torch", "transformers")}
        return {**versions, "instructions": capability}

    def bytes_per_token(self) -> int | None:
        parameters = sum(p.nbytes for p in self._model.parameters())
        embedding = self._model.get_input_embeddings().weight
        tied = embedding is self._model.get_output_embeddings().weight
        return parameters - (0 if tied else embedding.nbytes)
