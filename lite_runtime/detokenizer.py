"""Token ids to text as they come, without showing half a character.

Cost is linear: every token is looked at once. The text equals what the tokenizer gives for all ids at once,
except that an incomplete character at the end is dropped.
"""

from __future__ import annotations

import codecs
import json
import re

from .errors import UnsupportedError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """The UTF-8 bytes that each token of a vocabulary stands for."""

    def __init__(self, tokenizer):
        """`tokenizer` is a tokenizers.Tokenizer, byte-level BPE or SentencePiece with byte fallback."""
        self._tokenizer = tokenizer
        # A decoder pickles as its JSON; reading it there spares parsing the whole vocabulary again.
        decoder = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else {}
        kinds = [part["type"] for part in decoder.get("decoders", [decoder]) if part.get("type")]
        if kinds == ["ByteLevel"]:
            self._convert = self._byte_level
        elif "ByteFallback" in kinds:
            self._convert = self._sentence_piece
        else:
            raise UnsupportedError(
                f"the tokenizer decodes with {kinds or 'nothing'}, expected ByteLevel or ByteFallback"
            )
        self.strips_first_space = "Strip" in kinds
        self._byte_of = {character: byte for byte, character in enumerate(byte_alphabet())}
        self._special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}

    def __call__(self, token: int) -> bytes:
        """Empty for a special token, and for an id of the padded vocabulary that stands for nothing."""
        piece = None if token < 0 or token in self._special else self._tokenizer.id_to_token(token)
        return b"" if piece is None else self._convert(piece)

    def _byte_level(self, piece: str) -> bytes:
        try:
            return bytes([self._byte_of[character] for character in piece])
        except KeyError:  # an added token, written as itself
            return piece.encode("utf-8")

    def _sentence_piece(self, piece: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(piece)
        return bytes([int(byte.group(1), 16)]) if byte else piece.replace("\u2581", " ").encode("utf-8")


class StreamingDetokenizer:
    """reset(); add(id) -> the text that became certain; finalize() -> what is left."""

    def __init__(self, token_bytes: TokenBytes):
        self._token_bytes = token_bytes
        self.reset()

    def reset(self) -> None:
        """Forgets what was added."""
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = True

    def add(self, token: int) -> str:
        """The text that becomes certain with `token`; "" inside a character."""
        data = self._token_bytes(token)
        if data and self._at_start:
            self._at_start = False
            if self._token_bytes.strips_first_space and data[:1] == b" ":
                data = data[1:]
        return self._utf8.decode(data)

    def finalize(self) -> str:
        """Ends the text. The bytes of an unfinished character are dropped: half a character is no text."""
        self.reset()
        return ""


def byte_alphabet() -> list[str]:
    """The printable character that byte-level BPE (GPT-2) writes for each byte: printable Latin-1 stands for
    itself, the other bytes are spelled from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
