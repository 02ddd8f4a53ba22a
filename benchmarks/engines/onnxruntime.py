"""ONNX Runtime GenAI: int8 or int4 weights in blocks of 32, activations rounded to int8."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from . import base


class OnnxRuntime(base.Engine):
    name = "onnxruntime"
    quants = ("int8", "int4")
    requirements = (
        "torch==2.13.0",
        "transformers==5.24.0",
        "onnx==1.23.2",
        "onnx-ir==1.1.0",
        "onnxruntime==1.32.0",
        "onnxruntime-genai==0.18.0",
    )
    modules = ("onnxruntime_genai",)

    def convert(self, hf_folder: Path, out_folder: Path, quant: str, python: str) -> None:
        cache = out_folder.with_name(f"{out_folder.name}-cache")
        command = [python, "-m", "onnxruntime_genai.models.builder", "-i", hf_folder, "-o", out_folder]
        command += ["-p", quant, "-e", "cpu", "-c", cache, "--extra_options"]
        command += ["accuracy_level=4", "block_size=32", "prune_lm_head=true"]
        try:
            base.run_tool(command, out_folder.with_suffix(".log"))
        finally:
            shutil.rmtree(cache, ignore_errors=True)
        unread = _table_bytes(base.read_config(hf_folder), quant)
        read = (out_folder / "model.onnx.data").stat().st_size - unread
        base.keep_bytes_per_token(out_folder, read)

    def load(self, folder: str, quant: str, threads: int) -> None:
        import onnxruntime_genai

        self._folder = Path(folder)
        config = onnxruntime_genai.Config(folder)
        options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = onnxruntime_genai.Model(config)

    def _generator(self, length: int):
        import onnxruntime_genai

        params = onnxruntime_genai.GeneratorParams(self._model)
        # No end of text before that length.
        params.set_search_options(max_length=length, min_length=length, do_sample=False)
        return onnxruntime_genai.Generator(self._model, params)

    def run(self, ids: list, n_new: int) -> list:
        generator = self._generator(len(ids) + n_new)
        now, seconds = time.perf_counter(), []
        generator.append_tokens(ids)
        while len(seconds) < n_new:
            generator.generate_next_token()
            before, now = now, time.perf_counter()
            seconds.append(now - before)
        return seconds

    def top1(self, ids: list) -> list:
        # The head was cut to the last token, so that each token is a forward of its own.
        generator, found = self._generator(base.CONTEXT), []
        for token in ids:
            generator.append_tokens([token])
            found.append(int(generator.get_logits().reshape(-1).argmax()))
        return found

    def versions(self) -> dict:
        return {name: base.package_version(name) for name in ("onnxruntime", "onnxruntime_genai")}

    def bytes_per_token(self) -> int | None:
        return base.kept_bytes_per_token(self._folder)


def _table_bytes(config: dict, quant: str) -> int:
    """Bytes of what is read by single rows, in fp32: the rotary tables, and the embedding.

    A tied head of int4 is the embedding too, and is read as a whole.
    """
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    shared = quant == "int4" and config.get("tie_word_embeddings")
    embedding = 0 if shared else config["vocab_size"] * config["hidden_size"]
    return 4 * (embedding + config["max_position_embeddings"] * head_dim)
