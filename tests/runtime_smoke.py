"""Loads a `.nb` file on a bare Python with the base dependencies: `runtime_smoke.py FILE [CHECKSUM]`.

Prints the checksum of what it generated, greedy and sampled; exits with 1 if it is not CHECKSUM. `make test`
runs it on every Python from 3.9 on; all must agree.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

try:
    import lite_runtime
except ImportError:  # from a checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    import lite_runtime


def generate(path: str) -> str:
    """Checksum over the text and tokens of a greedy and a sampled answer."""
    crc = 0
    with lite_runtime.load(path) as model:
        ids = model.text.encode_chat([{"role": "user", "content": "What is 1 + 1? 你好 👋"}])
        for options in ({"temperature": 0}, {"temperature": 0.9, "top_p": 0.9, "seed": 11}):
            with model.session() as session:
                items = list(session.generate(ids, max_new_tokens=24, **options))
            if items[-1].finish_reason not in ("stop", "length"):
                sys.exit(f"{path}: unexpected finish reason {items[-1].finish_reason}")
            said = "".join(item.text for item in items)
            crc = zlib.crc32(f"{[item.token for item in items]} {said}".encode(), crc)
    return f"{crc:08x}"


def main(arguments) -> int:
    if len(arguments) not in (1, 2):
        print(__doc__.strip().splitlines()[0], file=sys.stderr)
        return 2
    found = generate(arguments[0])
    print(found)
    if len(arguments) == 2 and found != arguments[1]:
        print(
            f"checksum {found}, expected {arguments[1]}, on Python {sys.version.split()[0]}", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
