"""A Hugging Face tokenizer.json from what a GGUF stores: tokens, types, merges, `tokenizer.ggml.pre`."""

from __future__ import annotations

from lite_runtime.errors import FileFormatError, UnsupportedError

from .byte_level_bpe import added_token, byte_level, tokenizer_json
from .file_kinds import to_json

# gguf token types.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_AFTER_DIGITS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(digits: str) -> list[dict]:
    """Pre-tokenizers of the cl100k family; `digits` says how many digits go together."""
    regex = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{_AFTER_DIGITS}"
    return [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
        byte_level(use_regex=False),
    ]


_QWEN2 = {"pre_tokenizers": _split(r"\p{N}"), "normalizer": {"type": "NFC"}, "ignore_merges": False}
_LLAMA3 = {"pre_tokenizers": _split(r"\p{N}{1,3}"), "normalizer": None, "ignore_merges": True}
_GPT2 = {"pre_tokenizers": [byte_level(use_regex=True)], "normalizer": None, "ignore_merges": False}
_SMOLLM = {
    "pre_tokenizers": [{"type": "Digits", "individual_digits": True}, byte_level(use_regex=True)],
    "normalizer": None,
    "ignore_merges": False,
}
# tokenizer.ggml.pre → how text is cut before the merges. A wrong guess changes ids silently, so no default.
PRE_TOKENIZERS = {
    "deepseek-r1-qwen": _QWEN2,
    "gpt-2": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "smollm": _SMOLLM,
}
# Tokens that end a turn or a text; a file's eos_token_id names only one of them.
_END_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
)
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


class GgufTokenizer:
    """Reads the `tokenizer.*` metadata once; each method makes one file of the bundle."""

    def __init__(self, metadata: dict, where: str):
        self.metadata = metadata
        self.where = where
        kind, pre = self._get("ggml.model"), self._get("ggml.pre")
        if kind != "gpt2":
            raise UnsupportedError(
                f"{where}: tokenizer.ggml.model is {kind!r}; only 'gpt2' (byte-level BPE) is supported"
            )
        if pre not in PRE_TOKENIZERS:
            raise UnsupportedError(
                f"{where}: tokenizer.ggml.pre is {pre!r}; known are {', '.join(PRE_TOKENIZERS)}. "
                "Another way of cutting text would change the token ids"
            )
        self.pre = PRE_TOKENIZERS[pre]
        self.tokens = self._list("ggml.tokens")
        self.types = self.metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(self.tokens)
        self.merges = self._list("ggml.merges")
        if len(self.types) != len(self.tokens):
            raise FileFormatError(f"{where}: {len(self.tokens)} tokens, but {len(self.types)} token types")
        add_bos = self._get("ggml.add_bos_token")
        self.add_bos = self.pre is _LLAMA3 if add_bos is None else bool(add_bos)
        if self.add_bos and self._token("bos") is None:
            raise FileFormatError(f"{where}: BOS is to be added, but tokenizer.ggml.bos_token_id is missing")
        if self._get("ggml.add_eos_token"):
            raise UnsupportedError(
                f"{where}: tokenizer.ggml.add_eos_token is true; prompts must not end with EOS"
            )

    def tokenizer_json(self) -> bytes:
        """Vocabulary and merges; FileFormatError where they contradict each other."""
        vocab: dict[str, int] = {}
        for index, (token, kind) in enumerate(zip(self.tokens, self.types)):
            if kind == UNUSED:
                continue
            if token in vocab:
                raise FileFormatError(f"{self.where}: tokens {vocab[token]} and {index} are both {token!r}")
            vocab[token] = index
        for merge in self.merges:
            left, _, right = merge.partition(" ")
            if not (left in vocab and right in vocab and left + right in vocab):
                raise FileFormatError(f"{self.where}: merge {merge!r} names a token outside the vocabulary")
        return tokenizer_json(
            vocab,
            self.merges,
            [
                added_token(index, token, special=kind == CONTROL)
                for index, (token, kind) in enumerate(zip(self.tokens, self.types))
                if kind in (CONTROL, USER_DEFINED)
            ],
            pre_tokenizer={"type": "Sequence", "pretokenizers": self.pre["pre_tokenizers"]},
            post_processor=self._post_processor(),
            normalizer=self.pre["normalizer"],
            ignore_merges=self.pre["ignore_merges"],
        )

    def tokenizer_config_json(self) -> bytes:
        """Special tokens, BOS rule and chat template."""
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": self.add_bos,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
        }
        for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
            config[f"{role}_token"] = self._token(key)
        template = self.metadata.get("tokenizer.chat_template")
        if template is not None:
            config["chat_template"] = template
        return to_json(config)

    def generation_config_json(self) -> bytes:
        """EOS ids, and sampling defaults only where the file states them (`general.sampling.*`)."""
        ids = {self._get(f"ggml.{key}_token_id") for key in ("eos", "eot", "eom")} - {None}
        ids |= {
            index
            for index, (token, kind) in enumerate(zip(self.tokens, self.types))
            if kind == CONTROL and token in _END_TOKENS
        }
        config: dict = {"eos_token_id": sorted(ids)}
        if self._get("ggml.bos_token_id") is not None:
            config["bos_token_id"] = self._get("ggml.bos_token_id")
        for key, name in _SAMPLING.items():
            value = self.metadata.get(f"general.sampling.{key}")
            if value is not None:
                config[name] = round(value, 6) if isinstance(value, float) else value  # stored as fp32
        if "temperature" in config:
            config["do_sample"] = config["temperature"] > 0
        return to_json(config)

    def _get(self, key: str):
        return self.metadata.get(f"tokenizer.{key}")

    def _list(self, key: str) -> list[str]:
        value = self._get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise FileFormatError(f"{self.where}: tokenizer.{key} is missing or not a list of strings")
        return value

    def _token(self, role: str):
        index = self._get(f"ggml.{role}_token_id")
        if index is None:
            return None
        if not 0 <= index < len(self.tokens):
            raise FileFormatError(
                f"{self.where}: tokenizer.ggml.{role}_token_id is {index} of {len(self.tokens)} tokens"
            )
        return self.tokens[index]

    def _post_processor(self) -> dict:
        if not self.add_bos:
            return byte_level(use_regex=True)
        bos = self._token("bos")
        first = [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        second = [{"SpecialToken": {"id": bos, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
        bos_id = self._get("ggml.bos_token_id")
        return {
            "type": "TemplateProcessing",
            "single": first,
            "pair": first + second,
            "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
        }
