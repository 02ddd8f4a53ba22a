"""Hugging Face transformers as an independent engine, in one process that lives as long as the tests.

It needs torch and transformers, which this kit does not depend on: either in this Python or in the one that
EDGE_KIT_REFERENCE_PYTHON names. Without them the tests that ask for it are skipped.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np

PYTHON_VARIABLE = "EDGE_KIT_REFERENCE_PYTHON"
_NEEDED = ("torch", "transformers", "accelerate", "gguf")


def logits_of_gguf(path, ids) -> np.ndarray:
    """Float32 [len(ids), vocab]: the model of a .gguf file, dequantized to fp32."""
    return _ask({"what": "logits", "path": str(path), "ids": [int(i) for i in ids]})


def logits_of_folder(path, ids) -> np.ndarray:
    """Float32 [len(ids), vocab]: the model of a Hugging Face folder, computed in fp32."""
    return _ask({"what": "logits", "path": str(path), "ids": [int(i) for i in ids]})


def tensor_digests(path) -> dict[str, str]:
    """Tensor name → sha256 of its fp32 bytes, as transformers loads a .gguf file or a folder."""
    return _ask({"what": "digests", "path": str(path)}).item()


def token_ids(path, lines, single_digits: bool = False) -> list[list[int]]:
    """Ids of each line by the tokenizer of a .gguf file or a folder, special tokens added as it says.

    transformers ignores `tokenizer.ggml.pre` = smollm; `single_digits` adds what that means.
    """
    return _ask({"what": "ids", "path": str(path), "lines": lines, "single_digits": single_digits}).tolist()


def _ask(request: dict) -> np.ndarray:
    worker = _worker(_python())
    with tempfile.TemporaryDirectory() as scratch:
        request["out"] = str(Path(scratch) / "out.npy")
        worker.stdin.write(json.dumps(request) + "\n")
        worker.stdin.flush()
        reply = worker.stdout.readline()
        if reply != '"ok"\n':
            raise RuntimeError(
                f"transformers reference: {json.loads(reply) if reply else 'the process ended'}"
            )
        return np.load(request["out"], allow_pickle=True)


def _python() -> str:
    """The interpreter that has transformers; skips the calling test if there is none."""
    import pytest

    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        return named
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"transformers reference: {', '.join(missing)} not installed (or set {PYTHON_VARIABLE})")
    return sys.executable


@functools.cache
def _worker(python: str) -> subprocess.Popen:
    """Ends by itself when this process does: its input closes."""
    environment = dict(os.environ, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    return subprocess.Popen(
        [python, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


# --- in the worker


def _serve() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print must not mix with the replies
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"logits": _logits, "digests": _digests, "ids": _token_ids}[request["what"]]
            np.save(request["out"], answer(request))
            reply = "ok"
        except Exception:
            reply = traceback.format_exc()
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _source(path: str) -> dict:
    if path.endswith(".gguf"):
        return {"pretrained_model_name_or_path": str(Path(path).parent), "gguf_file": Path(path).name}
    return {"pretrained_model_name_or_path": path}


@functools.lru_cache(maxsize=1)
def _model(path: str):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(**_source(path), dtype=torch.float32).eval()


def _logits(request: dict) -> np.ndarray:
    import torch

    with torch.no_grad():
        return _model(request["path"])(torch.tensor([request["ids"]])).logits[0].numpy()


def _digests(request: dict) -> np.ndarray:
    import hashlib

    tensors = _model(request["path"]).state_dict()
    digests = {
        name: hashlib.sha256(t.contiguous().numpy().tobytes()).hexdigest() for name, t in tensors.items()
    }
    return np.array(digests, dtype=object)


def _token_ids(request: dict) -> np.ndarray:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(**_source(request["path"]))
    if request["single_digits"]:
        backend = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    ids = np.empty(len(request["lines"]), dtype=object)
    for i, line in enumerate(request["lines"]):
        ids[i] = tokenizer(line)["input_ids"]
    return ids


if __name__ == "__main__":
    _serve()
