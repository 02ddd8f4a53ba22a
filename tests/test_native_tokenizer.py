"""The native tokenizer against Hugging Face's: equal ids and equal text, broken bytes included."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import re
import unicodedata
import zipfile
from pathlib import Path

import pytest
import tokenizers
from native_text import texts_over
from r1_tokenizers import fetch_r1_tokenizers
from text_lines import broken, mixed_lines
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from lite_runtime.bundle import Bundle
from lite_runtime.detokenizer import byte_alphabet
from lite_runtime.errors import FileFormatError, UnsupportedError
from lite_runtime.text import Text

TABLES = Path(__file__).parent.parent / "lite_runtime" / "src" / "text" / "unicode_classes.cc"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
LINES = 500 if os.environ.get("EDGE_KIT_EMULATED") else 10_000


@pytest.fixture(scope="module")
def open_with(native_library, tiny_nb, tmp_path_factory):
    """open_with({name: bytes}) -> NativeText over a small model with these files behind its tensors."""
    with texts_over(tiny_nb, tmp_path_factory.mktemp("text")) as make:
        yield make


@pytest.fixture(scope="module")
def r1_files() -> dict:
    """tokenizer.json of R1's distills of Qwen2 and of Llama 3, and their configuration."""
    qwen, llama, config = fetch_r1_tokenizers()
    found = {"config": config.read_bytes()}
    for name, path in (("qwen2", qwen), ("llama3", llama)):
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            found[name] = archive.read("tokenizer.json")
    return found


def trained(pre_tokenizer, normalizer=None) -> Tokenizer:
    """A small BPE of its own, trained on the lines that it is then tried on."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|begin_of_text|>", "<|eot_id|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(mixed_lines(3, 2000), trainer)
    tokenizer.add_tokens(["<mark>", AddedToken("caf\u00e9 au", normalized=True)])
    return tokenizer


@pytest.fixture(scope="module", params=["smollm2", "qwen2", "llama3", "llama3-trained", "gpt2-trained"])
def pair(request, open_with):
    """(Hugging Face's tokenizer, the native one) of one tokenizer.json."""
    if request.param == "smollm2":
        content = Bundle(request.getfixturevalue("demo_nb")).read("tokenizer.json")
    elif request.param == "llama3-trained":
        split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        content = trained(pre_tokenizers.Sequence([split, level])).to_str().encode()
    elif request.param == "gpt2-trained":
        level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        content = trained(level, normalizers.Sequence([normalizers.NFC()])).to_str().encode()
    else:
        content = request.getfixturevalue("r1_files")[request.param]
    return Tokenizer.from_str(content.decode()), open_with({"tokenizer.json": content})


def marks_of(tokenizer: Tokenizer) -> list:
    return [token.content for token in tokenizer.get_added_tokens_decoder().values()][:30]


@pytest.mark.parametrize("special", [True, False])
def test_equal_ids_and_text(pair, special):
    expected, native = pair
    lines = mixed_lines(11 + special, LINES, marks_of(expected))
    assert len(set(lines)) == LINES
    expected.encode_special_tokens = not special
    wanted = [encoding.ids for encoding in expected.encode_batch(lines, add_special_tokens=False)]
    expected.encode_special_tokens = False
    for line, ids in zip(lines, wanted):
        assert native.encode(line, special=special) == ids, repr(line)
    for skip in (True, False):
        for ids, text in zip(wanted, expected.decode_batch(wanted, skip_special_tokens=skip)):
            assert native.decode(ids, skip_special=skip) == text


def test_broken_bytes(pair):
    expected, native = pair
    lines = broken(5, mixed_lines(13, 2000, marks_of(expected)))
    texts = [line.decode("utf-8", "replace") for line in lines]
    assert sum("\ufffd" in text for text in texts) > 1000
    for line, encoding in zip(lines, expected.encode_batch(texts, add_special_tokens=False)):
        assert native.encode(line) == encoding.ids, line


def test_random_ids_decode_and_stream_alike(pair):
    """Most such ids spell no UTF-8."""
    expected, native = pair
    rng, size = random.Random(17), expected.get_vocab_size()
    lists = [[rng.randrange(size) for _ in range(rng.randint(1, 40))] for _ in range(1000)]
    lists += [[rng.randrange(300) for _ in range(40)] for _ in range(1000)]
    for skip in (True, False):
        texts = expected.decode_batch(lists, skip_special_tokens=skip)
        assert [native.decode(ids, skip) for ids in lists] == texts
    end = expected.token_to_id("A")
    for ids in lists[::10]:
        pieces = native.stream([*ids, end])
        assert "".join(pieces) == expected.decode([*ids, end])


def test_long_lines(pair):
    expected, native = pair
    for line in ("a" * 100_000, " " * 100_000 + "x", "哈" * 30_000, "ab1\n" * 20_000, "e\u0301" * 30_000):
        assert native.encode(line) == expected.encode(line, add_special_tokens=False).ids


def known_code_points() -> list:
    """All, if the tables were made with this `tokenizers`; else those on which all versions agree."""
    made_with = re.search(r"As tokenizers (\S+) has it", TABLES.read_text("ascii")).group(1)
    assigned = [*range(0x40000), *range(0xE0000, 0xE0200), *range(0x10FF00, 0x110000)]
    points = [point for point in assigned if not 0xD800 <= point < 0xE000]
    if made_with == tokenizers.__version__:
        return points
    return [point for point in points if unicodedata.ucd_3_2_0.category(chr(point)) != "Cn"]


def chunks(points, size: int = 512):
    points = iter(points)
    while chunk := [*itertools.islice(points, size)]:
        yield chunk


def byte_tokenizer(pre_tokenizer, merged_with: str = "", normalizer=None) -> Tokenizer:
    """Bytes alone, and merges of each character in `merged_with` with each byte that may follow it."""
    letters = byte_alphabet()
    merges = [(first, letter) for first in merged_with for letter in letters]
    vocab = {token: i for i, token in enumerate([*letters, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
SPLITS = {
    "gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTE_LEVEL]),
    "llama3": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), BYTE_LEVEL]),
}


def too_new_for_digits(points) -> set:
    """Digits goes by Rust's own table, which lacks a few numbers that the regular expressions know."""
    digits, numbers = pre_tokenizers.Digits(True), pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
    texts = {point: f"a{chr(point)}" for point in points}
    return {p for p, t in texts.items() if digits.pre_tokenize_str(t) != numbers.pre_tokenize_str(t)}


@pytest.mark.parametrize("split", SPLITS)
def test_class_of_every_character(open_with, split):
    """Whether a character goes with a letter, a digit, a symbol, a space or an apostrophe before it."""
    expected = byte_tokenizer(SPLITS[split], "a1!Ġ'")
    native = open_with({"tokenizer.json": expected.to_str().encode()})
    points = known_code_points()
    if split == "digits":
        newest = too_new_for_digits(points)
        assert len(newest) < 20
        points = [point for point in points if point not in newest]
    for chunk in chunks(points):
        text = "".join(f"a{c} 1{c} !{c}\n {c}x'{c}" for c in map(chr, chunk))
        assert native.encode(text) == expected.encode(text).ids, f"U+{chunk[0]:04X} to U+{chunk[-1]:04X}"


def test_normalization_of_every_character(open_with):
    normalizer = normalizers.NFC()
    expected = byte_tokenizer(BYTE_LEVEL, normalizer=normalizer)
    native = open_with({"tokenizer.json": expected.to_str().encode()})
    for chunk in chunks(known_code_points()):
        characters = map(chr, chunk)
        text = "".join(f"{c}|e\u0301{c}\u0323|{c}\u0338\u0334|\u0b47{c}|\u1100{c}\u11a8|" for c in characters)
        back = native.decode(native.encode(text))
        assert back == normalizer.normalize_str(text), f"U+{chunk[0]:04X} to U+{chunk[-1]:04X}"


def test_normalization_of_random_marks(open_with):
    normalizer = normalizers.NFC()
    content = byte_tokenizer(BYTE_LEVEL, normalizer=normalizer).to_str().encode()
    native = open_with({"tokenizer.json": content})
    rng = random.Random(23)
    marks = [chr(point) for point in range(0x300, 0x370)]
    marks += "aeoAEOqé각가\u1112\u1161\u11ab\u0b47\u0b3eấ\u05d3\u05bc"
    for _ in range(3000):
        text = "".join(rng.choices(marks, k=rng.randint(1, 20)))
        assert native.decode(native.encode(text)) == normalizer.normalize_str(text), ascii(text)


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "B", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"B": {"id": "B", "ids": [256], "tokens": ["<s>"]}},
}


@pytest.mark.parametrize("add_bos", [True, False, None])
@pytest.mark.parametrize("template", [None, TEMPLATE])
@pytest.mark.parametrize("bos", ["<s>", {"content": "<think>"}, "missing", None])
def test_bos_as_in_python(open_with, tmp_path, add_bos, template, bos):
    made = byte_tokenizer(BYTE_LEVEL)
    made.add_special_tokens(["<s>"])
    made.add_tokens(["<think>"])
    tokenizer = {**json.loads(made.to_str()), "post_processor": template}
    config = {"add_bos_token": add_bos, "bos_token": bos, "eos_token": "<think>"}
    files = {
        "tokenizer.json": json.dumps(tokenizer).encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }
    native = open_with(files)
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    text = Text(Bundle(tmp_path / "t.zip"))
    for line in ("", "hello", "<think>", "<s>hi", " <think>"):
        assert native.encode(line, bos=True) == text.encode(line), line
        assert native.encode(line, bos=False) == text.encode(line, bos=False), line


def test_merges_in_both_spellings(open_with, r1_files):
    """Pairs as lists are what newer versions write."""
    tokenizer = json.loads(r1_files["qwen2"])
    merges = tokenizer["model"]["merges"]
    as_lists = [merge if isinstance(merge, list) else merge.split(" ") for merge in merges]
    as_texts = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    found = []
    for spelled in (as_lists, as_texts):
        tokenizer["model"]["merges"] = spelled
        content = json.dumps(tokenizer, ensure_ascii=spelled is as_lists).encode()
        native = open_with({"tokenizer.json": content})
        found.append([native.encode(line) for line in mixed_lines(29, 300)])
    assert found[0] == found[1]


def test_files_that_cannot_be_used(open_with, r1_files):
    def refused(error, message, files):
        with pytest.raises(error, match=message):
            open_with(files).encode("x")

    refused(UnsupportedError, "no tokenizer.json behind the tensors", {"config.json": b"{}"})
    refused(FileFormatError, "tokenizer.json: no JSON at byte 3", {"tokenizer.json": b"{} x"})
    whole = r1_files["qwen2"]
    refused(FileFormatError, "tokenizer.json: no JSON at byte", {"tokenizer.json": whole[: len(whole) // 2]})
    refused(
        FileFormatError,
        "tokenizer_config.json: add_bos_token is a number",
        {"tokenizer.json": whole, "tokenizer_config.json": b'{"bos_token": "<think>", "add_bos_token": 1}'},
    )
    sentence_piece = Tokenizer(models.Unigram([("a", 0.0)]))
    refused(UnsupportedError, "ByteLevel", {"tokenizer.json": sentence_piece.to_str().encode()})
