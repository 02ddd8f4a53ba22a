"""A byte-level tokenizer for random models: one token per byte, chat markers, filler up to the vocabulary."""

from __future__ import annotations

import json

from .file_kinds import to_json

END_OF_TEXT, IM_START, IM_END = 256, 257, 258
_SPECIAL = {END_OF_TEXT: "<|endoftext|>", IM_START: "<|im_start|>", IM_END: "<|im_end|>"}
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_alphabet() -> list[str]:
    """The printable character that byte-level BPE (GPT-2) writes for each byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def byte_tokenizer_files(vocab_size: int) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json and generation_config.json. Byte b is token b.

    Ids from 259 on are words that no text encodes to (there are no merges), so that every id which a random
    model draws decodes to something.
    """
    vocab = {token: index for index, token in enumerate(byte_alphabet())}
    vocab.update({token: index for index, token in _SPECIAL.items()})
    vocab.update({f"Ġw{index}": index for index in range(len(vocab), vocab_size)})
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, token in _SPECIAL.items()
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [],
        },
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": None,
        "eos_token": _SPECIAL[IM_END],
        "pad_token": _SPECIAL[END_OF_TEXT],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    return {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False).encode("utf-8"),
        "tokenizer_config.json": to_json(tokenizer_config),
        "generation_config.json": to_json({"eos_token_id": [END_OF_TEXT, IM_END]}),
    }
