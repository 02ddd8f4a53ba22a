"""The tokenizer.json of a byte-level BPE model: what does not depend on where its vocabulary comes from."""

from __future__ import annotations

import json
from typing import Optional


def byte_level(use_regex: bool) -> dict:
    """With `use_regex`, splits as GPT-2 does; always spells bytes in the printable alphabet."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def added_token(index: int, content: str, special: bool) -> dict:
    """A token that text is searched for before anything is split."""
    return {
        "id": index,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def tokenizer_json(
    vocab: dict[str, int],
    merges: list[str],
    added_tokens: list[dict],
    pre_tokenizer: dict,
    post_processor: dict,
    normalizer: Optional[dict] = None,
    ignore_merges: bool = False,
) -> bytes:
    """The file's content. `ignore_merges`: a piece that is a token as a whole is not built up by merges."""
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": vocab,
            "merges": merges,
        },
    }
    return json.dumps(document, ensure_ascii=False).encode("utf-8")
