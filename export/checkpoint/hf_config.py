"""Between a Hugging Face config.json and DecoderConfig."""

from __future__ import annotations

from typing import Optional

from lite_runtime.errors import FileFormatError, UnsupportedError

from .config import ARCHITECTURES, DecoderConfig
from .rope import inverse_frequencies, scaling_kind

# Sizes beyond these are damage, and would fill the memory before a tensor is looked for.
MAX_COUNT = 2**31 - 1
MAX_LAYERS = 10_000
MAX_HEAD_DIM = 2**16
MAX_FLOAT = 3e38  # of float32

_CLASS_NAMES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
# What transformers takes where config.json is silent.
_DEFAULTS = {
    "llama": {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6},
    "qwen2": {"max_position_embeddings": 32768, "rms_norm_eps": 1e-6},
}


def config_from_hf(raw: dict, name: str, where: str) -> DecoderConfig:
    """Read config.json's content; whatever the decoder here would not compute is an UnsupportedError."""
    architecture = _architecture(raw, where)
    _refuse_what_is_not_computed(raw, architecture, where)
    defaults = _DEFAULTS[architecture]

    n_heads = _count(raw, "num_attention_heads", where)
    hidden = _count(raw, "hidden_size", where)
    # transformers' default is n_heads for Llama; for Qwen2 it is a fixed 32, which no real file relies on.
    n_kv_heads = _count(raw, "num_key_value_heads", where, n_heads if architecture == "llama" else None)
    if raw.get("head_dim") is None and hidden % n_heads:
        raise FileFormatError(
            f"{where}: hidden_size {hidden} is not a multiple of num_attention_heads {n_heads}"
        )
    head_dim = _count(raw, "head_dim", where, hidden // n_heads, high=MAX_HEAD_DIM)
    check_heads(n_heads, n_kv_heads, head_dim, where)

    theta, scaling = _rope(raw, where)
    return DecoderConfig(
        architecture=architecture,
        n_layers=_count(raw, "num_hidden_layers", where, high=MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=_count(raw, "intermediate_size", where),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        vocab_size=_count(raw, "vocab_size", where),
        rms_norm_eps=_positive(raw, "rms_norm_eps", where, defaults["rms_norm_eps"]),
        rope_theta=theta,
        rope_scaling=scaling,
        rope_inv_freq=inverse_frequencies(head_dim, theta, scaling, where),
        qkv_bias=architecture == "qwen2",
        tied_head=bool(raw.get("tie_word_embeddings", False)),
        max_position_embeddings=_count(
            raw, "max_position_embeddings", where, defaults["max_position_embeddings"]
        ),
        name=name,
    )


def config_to_hf(config: DecoderConfig) -> dict:
    """The config.json that transformers reads as this model."""
    return {
        "architectures": [_CLASS_NAMES[config.architecture]],
        "model_type": config.architecture,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling,
        "tie_word_embeddings": config.tied_head,
    }


def check_heads(n_heads: int, n_kv_heads: int, head_dim: int, where: str) -> None:
    """Query heads must form equal groups per key/value head; rotary needs an even head size."""
    if n_heads % n_kv_heads:
        raise FileFormatError(f"{where}: {n_heads} heads are not a multiple of {n_kv_heads} key/value heads")
    if head_dim % 2:
        raise FileFormatError(f"{where}: head_dim {head_dim} is odd; rotary embedding needs an even one")


def _architecture(raw: dict, where: str) -> str:
    named = raw.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise FileFormatError(f"{where}: architectures is {named!r}; expected a list of names")
    supported = {class_name: name for name, class_name in _CLASS_NAMES.items()}
    if len(named) == 1 and named[0] in supported:
        return supported[named[0]]
    if not named and str(raw.get("model_type")) in ARCHITECTURES:
        return raw["model_type"]
    found = ", ".join(map(str, named)) or raw.get("model_type")
    if found is None:
        raise FileFormatError(f"{where}: names no architecture; is this a language model's config.json?")
    raise UnsupportedError(
        f"{where}: architecture {found} is not supported; this kit exports {', '.join(sorted(supported))}"
    )


def _refuse_what_is_not_computed(raw: dict, architecture: str, where: str) -> None:
    quantization = raw.get("quantization_config")
    if quantization:
        method = (
            quantization.get("quant_method", "unnamed") if isinstance(quantization, dict) else quantization
        )
        raise UnsupportedError(
            f"{where}: the weights are already quantized ({method}); give the bf16, fp16 or fp32 original"
        )
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedError(f"{where}: hidden_act '{activation}' is not supported; expected silu")
    if architecture == "llama":
        for key, meaning in (("attention_bias", "q, k, v and o_proj"), ("mlp_bias", "the MLP")):
            if raw.get(key):
                raise UnsupportedError(f"{where}: {key} is true: biases of {meaning} are not supported")
    if raw.get("pretraining_tp", 1) not in (None, 1):
        raise UnsupportedError(
            f"{where}: pretraining_tp {raw['pretraining_tp']} is not supported; expected 1"
        )
    if raw.get("partial_rotary_factor", 1.0) not in (None, 1, 1.0):
        raise UnsupportedError(
            f"{where}: partial_rotary_factor {raw['partial_rotary_factor']} is not supported"
        )
    _refuse_sliding_window(raw, where)


def _refuse_sliding_window(raw: dict, where: str) -> None:
    """A window matters only where it is on, shorter than the context, and some layer uses it."""
    window = raw.get("sliding_window")
    if window is None or not raw.get("use_sliding_window", False):
        return
    window = _count(raw, "sliding_window", where)
    layer_types = raw.get("layer_types")
    if isinstance(layer_types, list):
        some_layer = any(kind != "full_attention" for kind in layer_types)
    else:
        first_layer = _count(raw, "max_window_layers", where, 0, low=0)
        some_layer = first_layer < _count(raw, "num_hidden_layers", where)
    if some_layer and window < _count(raw, "max_position_embeddings", where, MAX_COUNT):
        raise UnsupportedError(f"{where}: sliding window attention (window {window}) is not supported")


def _rope(raw: dict, where: str) -> tuple[float, Optional[dict]]:
    """(theta, scaling or None). transformers 5 writes both into rope_parameters, earlier ones apart."""
    parameters = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise FileFormatError(f"{where}: rope scaling is not an object: {parameters!r}")
    theta = _positive({**raw, **parameters}, "rope_theta", where, 10000.0)
    scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedError(
            f"{where}: partial_rotary_factor {scaling['partial_rotary_factor']} is not supported"
        )
    return theta, (scaling if scaling_kind(scaling) != "none" else None)


def _count(
    raw: dict, key: str, where: str, default: Optional[int] = None, low: int = 1, high: int = MAX_COUNT
) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if value is None:
        raise FileFormatError(f"{where}: {key} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise FileFormatError(f"{where}: {key} is {value!r}; expected a whole number from {low} to {high}")
    return value


def _positive(raw: dict, key: str, where: str, default: float) -> float:
    value = raw.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MAX_FLOAT:
        raise FileFormatError(f"{where}: {key} is {value!r}; expected a positive number")
    return float(value)
