"""Tokenizers built from GGUF metadata give the ids of the real tokenizers, and unknown kinds are refused."""

from __future__ import annotations

import io
import json
import random
import zipfile
from pathlib import Path

import pytest
import reference_transformers
from checkpoint_files import demo
from edge_kit.export.checkpoint.gguf_tokenizer import PRE_TOKENIZERS, GgufTokenizer
from r1_tokenizers import fetch_r1_tokenizers
from tokenizers import Tokenizer

from lite_runtime.errors import FileFormatError, UnsupportedError

SNIPPETS = [
    "It was the best of times, it was the worst of times,",
    "don't I'LL you'Ve WE'RE it's o'clock rock'n'roll",
    "今有雉兔同笼，上有三十五头，下有九十四足，问雉兔各几何？",
    "def f(x: int) -> list[int]:\n\treturn [i ** 2 for i in range(x)]  # squares",
    "for (size_t i = 0; i < n; ++i) {\r\n    sum += a[i] * b[i];\r\n}\r\n",
    "3.14159 1234567890 1,000,000 0x7fff 2024-01-31 ½ ² ③ ٣ 十二",
    "naïve café Ångström cafe\u0301 e\u0301\u0301 ﬁ",
    "Привет, мир! Γειά σου Κόσμε שלום עולם مرحبا नमस्ते สวัสดี",
    "👍🏽 👩‍👩‍👧‍👦 🇩🇪 \u200d \ufe0f \u00a0 \u3000 \u2028 \x00 \x7f",
    "   leading, trailing   \n\n\n  \t\t mixed \r\n \r \n",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|> < |im_end| > <|im_",
    "<think>\nOkay.\n</think>\n\n<｜User｜>hi<｜Assistant｜><｜end▁of▁sentence｜>",
    "https://example.org/a?b=c&d=%20#e user@example.com C:\\dir\\file.txt",
    "!!!???...---===***___+++ \"quoted\" 'single' `code` ‘’“”—–…",
    "CamelCaseIdentifier snake_case_name SCREAMING_CASE x1y2z3 ABCdefGHI",
]


def mixed_lines() -> list[str]:
    """Whole snippets, the text files kept for other tests, and random cuts and joins of the snippets."""
    lines = list(SNIPPETS)
    for path in sorted((Path(__file__).parent / "data").glob("*.txt")):
        lines += path.read_text("utf-8").splitlines()[:100]
    rng = random.Random(20)
    while len(lines) < 400:
        parts = []
        for _ in range(rng.randint(1, 4)):
            text = rng.choice(SNIPPETS)
            start = rng.randrange(len(text))
            parts.append(text[start : start + rng.randint(1, 40)])
        lines.append(rng.choice(["", " ", "\n"]).join(parts))
    return lines


def gguf_metadata(tokenizer: dict, pre: str, vocab_size: int, **more) -> dict:
    """What llama.cpp's converter stores for a Hugging Face tokenizer, rows beyond it as unused [PADn]."""
    names = {index: (token, 1) for token, index in tokenizer["model"]["vocab"].items()}
    for token in tokenizer["added_tokens"]:
        names[token["id"]] = (token["content"], 3 if token["special"] else 4)
    rows = [names.get(index, (f"[PAD{index}]", 5)) for index in range(vocab_size)]
    merges = tokenizer["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [token for token, _ in rows],
        "tokenizer.ggml.token_type": [kind for _, kind in rows],
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in merges],
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


@pytest.fixture(scope="module")
def r1_tokenizers() -> dict:
    """The tokenizer.json of the R1 distills: one is Qwen2's kind, the other Llama 3's."""
    qwen, llama, _ = fetch_r1_tokenizers()
    found = {}
    for name, path in (("qwen", qwen), ("llama", llama)):
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            found[name] = json.loads(archive.read("tokenizer.json"))
    return found


@pytest.mark.parametrize(
    "source, pre, vocab_size, bos, eos",
    [
        ("qwen", "qwen2", 151936, 151646, 151643),
        ("qwen", "deepseek-r1-qwen", 152064, 151646, 151643),
        ("llama", "llama-bpe", 128256, 128000, 128001),
    ],
)
def test_ids_equal_the_real_tokenizer(r1_tokenizers, source, pre, vocab_size, bos, eos):
    real = r1_tokenizers[source]
    metadata = gguf_metadata(real, pre, vocab_size, bos_token_id=bos, eos_token_id=eos, add_bos_token=False)
    built = Tokenizer.from_str(GgufTokenizer(metadata, "test").tokenizer_json().decode())
    expected = Tokenizer.from_str(json.dumps(real))
    for line in mixed_lines():
        ids = expected.encode(line).ids
        assert built.encode(line).ids == ids, line
        assert built.decode(ids, skip_special_tokens=False) == expected.decode(ids, skip_special_tokens=False)
    assert built.token_to_id("[PAD151700]") is None
    who = [bos, *built.encode("Who are you?").ids]
    if source == "qwen":
        assert who == [151646, 15191, 525, 498, 30]
        assert built.encode("<think></think>").ids == [151648, 151649]


def test_bos_is_added_once(r1_tokenizers):
    metadata = gguf_metadata(
        r1_tokenizers["llama"], "llama-bpe", 128256, bos_token_id=128000, eos_token_id=128001
    )
    made = GgufTokenizer(metadata, "test")
    built = Tokenizer.from_str(made.tokenizer_json().decode())
    assert built.encode("Hi").ids == [128000, 13347]
    assert built.encode("Hi", add_special_tokens=False).ids == [13347]
    config = json.loads(made.tokenizer_config_json())
    assert config["add_bos_token"] is True and config["bos_token"] == "<｜begin▁of▁sentence｜>"


@pytest.mark.reference
def test_demo_ids_equal_transformers():
    built = Tokenizer.from_str(demo().files["tokenizer.json"].decode())
    lines = mixed_lines()
    expected = reference_transformers.token_ids(demo().source, lines, single_digits=True)
    for line, ids in zip(lines, expected):
        assert built.encode(line).ids == ids, line


def test_demo_text_files():
    files = demo().files
    built = Tokenizer.from_str(files["tokenizer.json"].decode())
    assert built.encode("12345").ids == [built.token_to_id(digit) for digit in "12345"]
    assert built.encode("<|im_start|>user\n").ids[:1] == [1] and built.get_vocab_size() == 49152
    config = json.loads(files["tokenizer_config.json"])
    assert config["eos_token"] == "<|im_end|>" and config["add_bos_token"] is False
    assert "named SmolLM" in config["chat_template"]
    assert 2 in json.loads(files["generation_config.json"])["eos_token_id"]
    assert "temperature" not in json.loads(files["generation_config.json"])


# --- small metadata by hand


def small(**changes) -> dict:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["h", "e", "he", "1", "11", "<|im_end|>", "<tool>", "[PAD7]", "<|other|>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 3, 4, 5, 3],
        "tokenizer.ggml.merges": ["h e", "1 1"],
        "tokenizer.ggml.eos_token_id": 8,
    }
    metadata.update(changes)
    return metadata


@pytest.mark.parametrize("pre, ids", [("smollm", [3, 3, 3]), ("gpt-2", [4, 3]), ("qwen2", [3, 3, 3])])
def test_digits(pre, ids):
    made = GgufTokenizer(small(**{"tokenizer.ggml.pre": pre}), "test")
    assert Tokenizer.from_str(made.tokenizer_json().decode()).encode("111").ids == ids


def test_added_tokens_keep_their_ids():
    built = Tokenizer.from_str(GgufTokenizer(small(), "test").tokenizer_json().decode())
    assert built.encode("he<tool>he<|other|>[PAD7]").ids[:4] == [2, 6, 2, 8]
    assert built.decode([2, 6, 8, 5]) == "he<tool>"  # the special ones are skipped


def test_generation_config():
    sampling = {"general.sampling.temp": 0.6000000238418579, "general.sampling.top_k": 20}
    made = json.loads(GgufTokenizer(small(**sampling), "test").generation_config_json())
    assert made == {"eos_token_id": [5, 8], "temperature": 0.6, "top_k": 20, "do_sample": True}


def test_unknown_kinds_are_never_guessed():
    for pre in ("default", "", None, "tekken"):
        with pytest.raises(UnsupportedError, match="tokenizer.ggml.pre is") as caught:
            GgufTokenizer(small(**{"tokenizer.ggml.pre": pre}), "x.gguf")
        assert repr(pre) in str(caught.value) and all(known in str(caught.value) for known in PRE_TOKENIZERS)
    for kind in ("llama", "bert", None):
        with pytest.raises(UnsupportedError, match="tokenizer.ggml.model is"):
            GgufTokenizer(small(**{"tokenizer.ggml.model": kind}), "x.gguf")


def test_twice_the_same_token():
    tokens = ["h", "e", "he", "1", "11", "e", "<tool>", "[PAD7]", "<|other|>"]
    with pytest.raises(FileFormatError, match="tokens 1 and 5 are both 'e'"):
        GgufTokenizer(small(**{"tokenizer.ggml.tokens": tokens}), "x.gguf").tokenizer_json()
