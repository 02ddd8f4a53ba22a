"""Models of known shapes with seeded random weights: to see what a shape costs, or whether engines agree.

Every tensor has its own generator, seeded by its name, so it does not matter in which order they are read.
"""

from __future__ import annotations

import hashlib
import math
import zipfile

import numpy as np

from lite_runtime.errors import UsageError, did_you_mean

from .base import Checkpoint
from .byte_tokenizer import byte_tokenizer_files
from .config import DecoderConfig
from .fetch import R1_TOKENIZER_CONFIG, R1_TOKENIZER_ZIP, FetchError, fetch
from .file_kinds import to_json
from .hf_config import config_from_hf, config_to_hf

_QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "rms_norm_eps": 1e-6}
_LLAMA = {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5}
R1_QWEN_1_5B = "deepseek-r1-distill-qwen-1.5b"
MODELS = {
    # Small, with QKV bias and an untied head. 176 and 331 leave a rest over most tile and group sizes.
    "tiny": {
        **_QWEN2,
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 176,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 331,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    },
    "smollm2-135m": {
        **_LLAMA,
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "rope_theta": 100000.0,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "qwen2.5-0.5b": {
        **_QWEN2,
        "num_hidden_layers": 24,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    },
    R1_QWEN_1_5B: {
        **_QWEN2,
        "num_hidden_layers": 28,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "rope_theta": 10000.0,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    },
}
LOGIT_STD = 3.5


class RandomModel(Checkpoint):
    """Random weights of any configuration."""

    def _read(self, name: str) -> np.ndarray:
        shape = self._shapes[name]
        mean, std = _distribution(name, shape, self.config)
        seed = int.from_bytes(hashlib.sha256(f"{self.config.name}/{name}".encode()).digest()[:8], "little")
        values = np.empty(shape, np.float32)
        np.random.Generator(np.random.PCG64(seed)).standard_normal(out=values, dtype=np.float32)
        values *= np.float32(std)
        if mean:
            values += np.float32(mean)
        return values


def random_model(name: str) -> RandomModel:
    """The model `random:name`; UsageError if there is none."""
    if name not in MODELS:
        hint = did_you_mean(f"random:{name}", [f"random:{known}" for known in MODELS])
        raise UsageError(f"random:{name}: no such model; there are {', '.join(MODELS)}{hint}")
    config = config_from_hf(MODELS[name], name, f"random:{name}")
    files, tokenizer = _text_files(config)
    files["config.json"] = to_json(config_to_hf(config))
    return RandomModel(config, files, f"random:{name} (random weights, {tokenizer} tokenizer)")


def _distribution(name: str, shape: tuple[int, ...], config: DecoderConfig) -> tuple[float, float]:
    """(mean, standard deviation): for inputs near 1, the outputs of a linear have one near `gain`."""
    if name.endswith("norm.weight"):
        return 1.0, 0.1
    if name.endswith(".bias"):
        # As in trained Qwen2: small for v, whose bias adds the same vector at every position.
        return 0.0, 0.05 if ".v_proj." in name else 0.5
    if name == "lm_head.weight" or (name == "model.embed_tokens.weight" and config.tied_head):
        return 0.0, LOGIT_STD / math.sqrt(config.hidden_size)
    if name == "model.embed_tokens.weight":
        return 0.0, 1.0
    # q and k a little above 1, so that attention picks; the rest keeps the residual stream growing slowly.
    gain = 1.5 if ".q_proj." in name or ".k_proj." in name else 1.0
    return 0.0, gain / math.sqrt(shape[-1])


def _text_files(config: DecoderConfig) -> tuple[dict[str, bytes], str]:
    """Tokenizer and generation files, and what to call them. Offline, the flagship is byte-level too."""
    if config.name != R1_QWEN_1_5B:
        return byte_tokenizer_files(config.vocab_size), "byte-level"
    try:
        archive, tokenizer_config = fetch(R1_TOKENIZER_ZIP, R1_TOKENIZER_CONFIG)
    except FetchError:
        return byte_tokenizer_files(config.vocab_size), "byte-level (the real one could not be fetched)"
    with zipfile.ZipFile(archive) as inner:
        tokenizer = inner.read("tokenizer.json")
    generation = {
        "bos_token_id": 151646,
        "eos_token_id": 151643,
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.95,
    }
    return {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": tokenizer_config.read_bytes(),
        "generation_config.json": to_json(generation),
    }, "DeepSeek-R1"
