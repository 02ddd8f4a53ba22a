"""Lines of mixed text, made from a seed: what people write, and what breaks tokenizers."""

from __future__ import annotations

import random
from pathlib import Path

_WORDS = (
    "the of and a to in is you that it he was for on are as with his they I at be this have from or one had "
    "by word but not what all were we when your can said there use an each which she do how their if will up "
    "don't I'LL you'Ve WE'RE it's o'clock rock'n'roll 'twas l'été naïve café Ångström Straße ﬁne ﬀ ĲSSEL "
    "Привет мир Γειά Κόσμε שלום עולם مرحبا नमस्ते สวัสดี ไทย 안녕하세요 こんにちは カタカナ Việt tiếng İstanbul"
).split()
_CODE = [
    "def f(x: int) -> list[int]:\n\treturn [i ** 2 for i in range(x)]  # squares",
    "for (size_t i = 0; i < n; ++i) {\r\n    sum += a[i] * b[i];\r\n}\r\n",
    "#include <stdio.h>\nint main(void) { return printf(\"%d\\n\", 0x7fff); }",
    '{"key": [1, 2.5e-3, null, true], "näme": "wert\\u00e9"}',
    "SELECT * FROM t WHERE a >= '2024-01-31' AND b != \"x\";\n\n\n",
    "https://example.org/a?b=c&d=%20#e user@example.com C:\\dir\\file.txt $HOME/.cache",
    "CamelCaseIdentifier snake_case_name SCREAMING_CASE x1y2z3 ABCdefGHI __init__",
    "\t\tif (a && !b || ~c ^ d) { e <<= 3; }  // ///// ====> <!-- -->",
]
_EMOJI = ["👍🏽", "👩‍👩‍👧‍👦", "🇩🇪🇨🇳", "❤️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "1️⃣", "😀", "🧑🏿‍🚀", "\u200d", "\ufe0f", "🫠"]
_SPACES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u2003", "\x0b", "\x85", " \n "]
_NUMBERS = ["3.14159", "1234567890", "1,000,000", "½", "²", "③", "٣٤٥", "十二", "Ⅷ", "𝟘𝟙", "६", "1e-5"]
_MARKS = ["e\u0301", "a\u0308\u0301", "\u0301", "o\u0302\u0323", "\u1112\u1161\u11ab", "q\u0307\u0323"]
_SYMBOLS = [*"!?.,;:'\"()[]{}<>@#$%^&*-_=+|\\/~`", *"…—“”«€\u00ad\ufffd\u0000\x7f"]
_BROKEN = [b"", b"\xff", b"\xe4", b"\xf0\x9f", b"\xed\xa0", b"\x80"]
_RANGES = [
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x3040, 0x30FF), (0xAC00, 0xD7A3),
    (0x1100, 0x11FF), (0x0300, 0x036F), (0x0590, 0x06FF), (0x0900, 0x0DFF), (0x0E00, 0x0FFF),
    (0x1E00, 0x1FFF), (0x2000, 0x2BFF), (0xF900, 0xFAFF), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF),
    (0xE000, 0xFFFF), (0x0001, 0x02FF), (0x10000, 0x10FFFF),
]  # fmt: skip


def _run(rng: random.Random) -> str:
    unit = rng.choice(["a", " ", "=", "\n", "哈", "1", "é", "e\u0301", "😀", "\u3000", "ab", "-+"])
    return unit * rng.randint(2, 300)


def _characters(rng: random.Random) -> str:
    first, last = rng.choice(_RANGES)
    return "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 12)))


def _files() -> list:
    found = []
    for path in sorted((Path(__file__).parent / "data").glob("*.txt")):
        found += path.read_text("utf-8").splitlines()
    return found


def mixed_lines(seed: int, count: int, marks=()) -> list:
    """`count` different lines; `marks` are tokens that are to stand in some of them, whole or cut."""
    rng = random.Random(seed)
    lines = dict.fromkeys(_files())
    kinds = [_WORDS, _WORDS, _CODE, _EMOJI, _SPACES, _SPACES, _NUMBERS, _MARKS, _SYMBOLS, [*marks] or _CODE]
    while len(lines) < count:
        parts = []
        for _ in range(rng.randint(1, 14)):
            way = rng.random()
            if way < 0.02:
                part = _run(rng)
            elif way < 0.3:
                part = _characters(rng)
            else:
                part = rng.choice(rng.choice(kinds))
            if rng.random() < 0.2:
                start = rng.randrange(len(part))
                part = part[start : start + rng.randint(1, 12)]
            parts.append(part)
        lines[rng.choice(["", " ", " "]).join(parts)] = None
    return list(lines)[:count]


def broken(seed: int, lines) -> list:
    """The lines as bytes, with some lost, changed or put in: mostly no UTF-8 any more."""
    rng = random.Random(seed)
    spoiled = []
    for line in lines:
        data = bytearray(line.encode("utf-8"))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            data[at : at + rng.randint(0, 2)] = rng.choice(_BROKEN)
        spoiled.append(bytes(data))
    return spoiled
