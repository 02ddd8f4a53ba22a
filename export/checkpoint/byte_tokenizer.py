"""A byte-level tokenizer for random models: one token per byte, chat markers, filler up to the vocabulary."""

from __future__ import annotations

from lite_runtime.detokenizer import byte_alphabet

from .byte_level_bpe import added_token, byte_level, tokenizer_json
from .file_kinds import to_json

END_OF_TEXT, IM_START, IM_END = 256, 257, 258
_SPECIAL = {END_OF_TEXT: "<|endoftext|>", IM_START: "<|im_start|>", IM_END: "<|im_end|>"}
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_tokenizer_files(vocab_size: int) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json and generation_config.json. Byte b is token b.

    Ids from 259 on are words that no text encodes to (there are no merges), so that every id which a random
    model draws decodes to something.
    """
    vocab = {token: index for index, token in enumerate(byte_alphabet())}
    vocab.update({token: index for index, token in _SPECIAL.items()})
    vocab.update({f"Ġw{index}": index for index in range(len(vocab), vocab_size)})
    tokenizer = tokenizer_json(
        vocab,
        [],
        [added_token(index, token, special=True) for index, token in _SPECIAL.items()],
        pre_tokenizer=byte_level(use_regex=True),
        post_processor=byte_level(use_regex=True),
    )
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
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": to_json(tokenizer_config),
        "generation_config.json": to_json({"eos_token_id": [END_OF_TEXT, IM_END]}),
    }
