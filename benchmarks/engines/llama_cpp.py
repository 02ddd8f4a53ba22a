"""llama.cpp through llama-cpp-python, built from its source for this very CPU."""

from __future__ import annotations

import ctypes
import os
import tarfile
import time
from pathlib import Path

from . import base

VERSION = "0.3.36"
_SOURCE = f"llama_cpp_python-{VERSION}"
_BUILD = "build"
_CMAKE = ("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DGGML_NATIVE=ON")
_CMAKE += ("-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF")
_ROWS = 64  # of logits that one decode may return
# Older compilers (GCC before 12.5, 13.4, 14.3) take the tile configuration for 8 bytes long, drop the rest
# of it as never read, and llama.cpp ends with a fault in its first matrix product on a CPU with AMX.
_AMX_SOURCE = "ggml/src/ggml-cpu/amx/mmq.cpp"
_AMX_CALL = "_tile_loadconfig(&tc);"
_AMX_WHOLE_CALL = '__asm__ volatile("ldtilecfg %0" ::"m"(tc));'
_CONVERTER = """
import runpy, sys
sys.path.insert(0, {folder!r})
from conversion.base import TextModel
known = TextModel.get_vocab_base_pre
def base_pre(self, tokenizer):
    try:
        return known(self, tokenizer)
    except NotImplementedError:
        return "default"
TextModel.get_vocab_base_pre = base_pre
runpy.run_path({folder!r} + "/convert_hf_to_gguf.py", run_name="__main__")
"""
_QUANTIZE = """
import sys
from llama_cpp import llama_cpp as api
params = api.llama_model_quantize_default_params()
params.ftype = getattr(api, "LLAMA_FTYPE_MOSTLY_" + sys.argv[3].upper())
sys.exit(api.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), params))
"""


def fetch_source(python: str, folder: Path, log: Path) -> Path:
    """Unpacks llama-cpp-python's source distribution in `folder`; returns where, llama.cpp is inside."""
    download = [python, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python", "-d", folder]
    base.run_tool([*download, f"llama-cpp-python=={VERSION}"], log)
    archive = folder / f"{_SOURCE}.tar.gz"
    with tarfile.open(archive) as source:  # holds the converter too, which no wheel does
        source.extractall(folder)
    archive.unlink()
    return folder / _SOURCE


class LlamaCpp(base.Engine):
    name = "llama-cpp"
    quants = ("q8_0", "q4_0")
    # For the build and the converter; llama-cpp-python itself is added by `install`.
    requirements = (
        "cmake==4.4.4",
        "torch==2.13.0",
        "transformers==5.24.0",
        "sentencepiece==0.2.1",
        "gguf==0.19.0",
    )
    modules = ("llama_cpp",)

    def stamp(self) -> list:
        return [*self.requirements, _SOURCE, *_CMAKE, _AMX_WHOLE_CALL]

    def install(self, python: str, folder: Path) -> None:
        log = folder / "install.log"
        pip = [python, "-m", "pip"]
        source = fetch_source(python, folder, log)
        cmake, build = Path(python).parent / "cmake", folder / _BUILD
        tools = source / "vendor" / "llama.cpp"
        amx = tools / _AMX_SOURCE
        amx.write_text(amx.read_text().replace(_AMX_CALL, _AMX_WHOLE_CALL))
        base.run_tool([cmake, "--fresh", "-S", tools, "-B", build, *_CMAKE], log)
        jobs = str(os.cpu_count() or 1)
        base.run_tool([cmake, "--build", build, "--target", "llama", "--parallel", jobs], log)
        bare = {**os.environ, "CMAKE_ARGS": "-DLLAMA_BUILD=OFF"}  # the library is the one above
        base.run_tool([*pip, "install", source], log, env=bare)
        package = next((folder / "venv").glob("lib/python*/site-packages/llama_cpp"))
        (package / "lib").unlink(missing_ok=True)
        (package / "lib").symlink_to(build / "bin")

    def convert(self, hf_folder: Path, out_folder: Path, quant: str, python: str) -> None:
        # Beside the environment: <engine's folder>/venv/bin/python.
        tools = Path(python).parent.parent.parent / _SOURCE / "vendor" / "llama.cpp"
        log = out_folder.with_suffix(".log")
        half = out_folder / "half.gguf"
        # Speed does not depend on the pre-tokenizer, and a tokenizer unknown to the converter is no obstacle.
        code = _CONVERTER.format(folder=str(tools))
        base.run_tool([python, "-c", code, hf_folder, "--outfile", half, "--outtype", "bf16"], log)
        base.run_tool([python, "-c", _QUANTIZE, half, out_folder / "model.gguf", quant], log)
        half.unlink()

    def load(self, folder: str, quant: str, threads: int) -> None:
        from llama_cpp import llama_cpp as api

        self._api = api
        self._path = str(Path(folder) / "model.gguf")
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(self._path.encode(), api.llama_model_default_params())
        if not self._model:
            raise base.EngineError(f"llama.cpp cannot load {self._path}")
        params = api.llama_context_default_params()
        params.n_ctx = base.CONTEXT
        params.n_batch = base.CONTEXT
        params.n_outputs_max = _ROWS
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.no_perf = True
        self._context = api.llama_init_from_model(self._model, params)
        if not self._context:
            raise base.EngineError("llama.cpp cannot make a context")
        self._n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))

    def _forget(self) -> None:
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), False)

    def _logits(self, row: int):
        import numpy

        pointer = self._api.llama_get_logits_ith(self._context, row)
        return numpy.ctypeslib.as_array(pointer, (self._n_vocab,))

    def _decode(self, batch) -> None:
        status = self._api.llama_decode(self._context, batch)
        if status:
            raise base.EngineError(f"llama_decode returned {status}")

    def run(self, ids: list, n_new: int) -> list:
        self._forget()
        seconds, new = [], list(ids)
        for _ in range(n_new):
            started = time.perf_counter()
            tokens = (ctypes.c_int32 * len(new))(*new)
            self._decode(self._api.llama_batch_get_one(tokens, len(new)))  # logits of the last token only
            new = [int(self._logits(-1).argmax())]
            seconds.append(time.perf_counter() - started)
        return seconds

    def top1(self, ids: list) -> list:
        self._forget()
        batch = self._api.llama_batch_init(_ROWS, 0, 1)
        found = []
        for start in range(0, len(ids), _ROWS):
            part = ids[start : start + _ROWS]
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i], batch.pos[i], batch.logits[i] = token, start + i, 1
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            self._decode(batch)
            found += [int(self._logits(i).argmax()) for i in range(len(part))]
        self._api.llama_batch_free(batch)
        return found

    def versions(self) -> dict:
        features = self._api.llama_print_system_info().decode()
        return {"llama-cpp-python": base.package_version("llama_cpp_python"), "cpu": features.strip()}

    def bytes_per_token(self) -> int | None:
        """All tensors but an embedding that is not the head as well."""
        total = self._api.llama_model_size(self._model)
        return total - _embedding_bytes(self._path)


def _embedding_bytes(path: str) -> int:
    """Of `token_embd.weight`, of which decoding reads one row; 0 where it is the head too."""
    from gguf import GGUFReader

    sizes = {tensor.name: int(tensor.n_bytes) for tensor in GGUFReader(path).tensors}
    return sizes["token_embd.weight"] if "output.weight" in sizes else 0
