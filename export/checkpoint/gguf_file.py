"""A .gguf file of a Llama or Qwen2 model, read with ggml's `gguf` package."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Optional

import numpy as np

from lite_runtime.errors import FileFormatError, UnsupportedError

from .base import CHUNK, Checkpoint
from .config import ARCHITECTURES, DecoderConfig, tensor_shapes
from .file_kinds import reject_impostor, to_json
from .gguf_tokenizer import GgufTokenizer
from .hf_config import check_heads, config_to_hf
from .rope import inverse_frequencies, llama3_factors

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
ROPE_FREQS = "rope_freqs.weight"
# The constants of Llama 3.1 and 3.2; a GGUF keeps only the factors that follow from them.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# Metadata of the architecture that is computed here, or changes nothing. Any other key is refused by name.
_KNOWN_KEYS = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.causal",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "vocab_size",
}


class GgufFile(Checkpoint):
    """A Llama or Qwen2 model in one GGUF. `name` in place of the file's own."""

    def __init__(self, path: Path, name: Optional[str] = None):
        reject_impostor(path)
        self.path = path
        reader = _open(path)
        self._tensors = {_canonical_name(tensor.name, path): tensor for tensor in reader.tensors}
        metadata = {key: field.contents() for key, field in reader.fields.items()}
        config = _config(metadata, self._tensors, path, name)
        _check_tensors(self._tensors, config, path)
        tokenizer = GgufTokenizer(metadata, str(path))
        if len(tokenizer.tokens) > config.vocab_size:
            raise FileFormatError(
                f"{path}: {len(tokenizer.tokens)} tokens, but token_embd.weight has {config.vocab_size} rows"
            )
        files = {
            "config.json": to_json(config_to_hf(config)),
            "tokenizer.json": tokenizer.tokenizer_json(),
            "tokenizer_config.json": tokenizer.tokenizer_config_json(),
            "generation_config.json": tokenizer.generation_config_json(),
        }
        super().__init__(config, files, str(path))

    def _read(self, name: str) -> np.ndarray:
        values = _dequantize(self._tensors[name], self.path)
        if self.config.architecture == "llama":
            if name.endswith("q_proj.weight"):
                values = _from_interleaved(values, self.config.n_heads)
            elif name.endswith("k_proj.weight"):
                values = _from_interleaved(values, self.config.n_kv_heads)
        return values


def _open(path: Path):
    try:
        import gguf
    except ImportError:
        raise UnsupportedError(f"{path}: reading GGUF needs the `gguf` package: pip install gguf") from None
    with open(path, "rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise FileFormatError(f"{path}: not a GGUF file (begins with {magic!r}, expected b'GGUF')")
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise FileFormatError(
            f"{path}: damaged or cut short GGUF ({type(error).__name__}: {error}); download it again"
        ) from None
    if reader.byte_order != "I":
        raise UnsupportedError(f"{path}: a GGUF of the other byte order is not supported")
    return reader


def _canonical_name(name: str, path: Path) -> str:
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if layer and layer[2] in _LAYER_NAMES:
        return f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.{layer[3]}"
    if name in _TOP_NAMES or name == ROPE_FREQS:
        return _TOP_NAMES.get(name, name)
    raise UnsupportedError(f"{path}: tensor {name} is not part of a Llama or Qwen2 decoder")


def _config(metadata: dict, tensors: dict, path: Path, name: Optional[str]) -> DecoderConfig:
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"{path}: architecture {architecture!r} is not supported; expected {' or '.join(ARCHITECTURES)}"
        )
    if metadata.get("split.count", 1) > 1:
        raise UnsupportedError(f"{path}: one part of a split GGUF; merge the parts with llama-gguf-split")
    prefix = architecture + "."
    own = {key[len(prefix) :]: value for key, value in metadata.items() if key.startswith(prefix)}
    for key, value in own.items():
        if key not in _KNOWN_KEYS and value:
            raise UnsupportedError(f"{path}: {architecture}.{key} = {value} is not supported")
    if own.get("attention.causal") is False:
        raise UnsupportedError(f"{path}: {architecture}.attention.causal is false; expected a decoder")

    def number(key: str, default=None):
        value = own.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise FileFormatError(f"{path}: {architecture}.{key} is {value!r}; expected one positive number")
        return value

    n_heads, hidden = number("attention.head_count"), number("embedding_length")
    n_kv_heads = number("attention.head_count_kv", n_heads)
    head_dim = number("attention.key_length", hidden // n_heads)
    check_heads(n_heads, n_kv_heads, head_dim, str(path))
    for key in ("attention.value_length", "rope.dimension_count"):
        if number(key, head_dim) != head_dim:
            raise UnsupportedError(
                f"{path}: {architecture}.{key} is {own[key]}; expected the head size {head_dim}"
            )
    theta = float(number("rope.freq_base", 10000.0))
    scaling = _rope_scaling(own, tensors, head_dim, theta, path)
    embedding = tensors.get("model.embed_tokens.weight")
    if embedding is None:
        raise FileFormatError(f"{path}: tensor token_embd.weight is missing")
    return DecoderConfig(
        architecture=architecture,
        n_layers=number("block_count"),
        hidden_size=hidden,
        intermediate_size=number("feed_forward_length"),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        vocab_size=int(embedding.shape[-1]),
        rms_norm_eps=float(str(np.float32(number("attention.layer_norm_rms_epsilon")))),
        rope_theta=theta,
        rope_scaling=scaling,
        rope_inv_freq=inverse_frequencies(head_dim, theta, scaling, str(path)),
        qkv_bias=architecture == "qwen2",
        tied_head="lm_head.weight" not in tensors,
        max_position_embeddings=number("context_length"),
        name=name or path.stem,
    )


def _rope_scaling(own: dict, tensors: dict, head_dim: int, theta: float, path: Path) -> Optional[dict]:
    """The scaling as a Hugging Face config spells it: from metadata, or recognized in rope_freqs.weight."""
    kind = own.get("rope.scaling.type", "none")
    scaling = None
    if kind != "none":
        scaling = {"rope_type": kind, "factor": own.get("rope.scaling.factor")}
        inverse_frequencies(head_dim, theta, scaling, str(path))  # names a scaling that is not supported
    freqs = tensors.get(ROPE_FREQS)
    if freqs is None:
        return scaling
    if scaling is not None:
        raise UnsupportedError(f"{path}: both {ROPE_FREQS} and rope scaling '{kind}': not supported together")
    factors = _dequantize(freqs, path)
    plain = inverse_frequencies(head_dim, theta, None, str(path))
    llama3 = {"rope_type": "llama3", "factor": float(factors.max(initial=0.0)), **_LLAMA3}
    if llama3["factor"] <= 0 or factors.shape != plain.shape:
        raise FileFormatError(f"{path}: {ROPE_FREQS} is damaged; expected {plain.size} positive factors")
    if not np.allclose(factors, llama3_factors(plain.astype(np.float64), llama3, str(path)), rtol=1e-4):
        raise UnsupportedError(f"{path}: {ROPE_FREQS} is not the llama3 scaling of Llama 3.1 and 3.2")
    return llama3


def _check_tensors(tensors: dict, config: DecoderConfig, path: Path) -> None:
    from gguf.constants import GGML_QUANT_SIZES
    from gguf.quants import dequantize

    expected = tensor_shapes(config)
    gguf_names = {name: tensor.name for name, tensor in tensors.items()}
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise FileFormatError(
            f"{path}: tensor {missing[0]} is missing "
            f"({len(missing)} of the {len(expected)} that the metadata implies)"
        )
    extra = [name for name in tensors if name not in expected and name != ROPE_FREQS]
    if extra:
        raise UnsupportedError(
            f"{path}: tensor {gguf_names[extra[0]]} is not part of a {config.architecture} decoder "
            f"of {config.n_layers} layers"
        )
    for name, shape in expected.items():
        found = _shape(tensors[name])
        if found != shape:
            raise FileFormatError(
                f"{path}: tensor {gguf_names[name]} has shape {list(found)}, expected {list(shape)}"
            )
    for kind in {tensor.tensor_type for tensor in tensors.values()}:
        one_block = np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8)
        try:
            dequantize(one_block, kind)
        except NotImplementedError:
            raise UnsupportedError(
                f"{path}: tensors of type {kind.name} cannot be read by this version of the `gguf` package"
            ) from None


def _shape(tensor) -> tuple[int, ...]:
    """GGUF lists the fastest dimension first."""
    return tuple(int(size) for size in reversed(tensor.shape))


def _dequantize(tensor, path: Path) -> np.ndarray:
    """Float32; read with plain file reads (a mapping would count as resident), a few rows at a time."""
    from gguf.quants import dequantize

    shape = _shape(tensor)
    values = np.empty(shape, np.float32)
    rows = values.reshape(-1, shape[-1])
    row_bytes = int(tensor.n_bytes) // len(rows)
    step = max(1, CHUNK // shape[-1])
    with open(path, "rb") as file:
        file.seek(int(tensor.data_offset))
        for start in range(0, len(rows), step):
            out = rows[start : start + step]
            raw = np.frombuffer(file.read(len(out) * row_bytes), np.uint8)
            if raw.size != len(out) * row_bytes:
                raise FileFormatError(f"{path}: cut short inside tensor {tensor.name}; download it again")
            out[:] = dequantize(raw.reshape(len(out), row_bytes), tensor.tensor_type)
    return values


def _from_interleaved(values: np.ndarray, n_heads: int) -> np.ndarray:
    """Undo llama.cpp's row order for Llama: its rotary pairs rows 2i, 2i + 1, Hugging Face's i, i + dim/2."""
    pairs = values.reshape(n_heads, -1, 2, values.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
