"""Damaged copies of a file's bytes: cut short, or with flipped bytes.

Same arguments, same copies. Also a command that writes the copies into a folder, for readers in other
languages:  python tests/attacks/mutate.py FILE.nb FOLDER
"""

from __future__ import annotations

import os
import random
import sys


def cuts(data: bytes, n: int):
    """`n` prefixes of `data`: half of the lengths near the start, where the structure is dense."""
    size = len(data)
    near = n // 2
    lengths = [i * min(size, 4096) // near for i in range(near)]
    lengths += [i * (size - 1) // max(n - near - 1, 1) for i in range(n - near)]
    for length in lengths:
        yield data[:length]


def flips(data: bytes, structure_ranges, n: int, seed: int):
    """`n` copies of `data`, each with one to four bytes changed inside `structure_ranges`, a list of
    (start, end). Values that break counts and offsets (0, 1, 0x7F, 0x80, 0xFF) come up as often as others."""
    generator = random.Random(seed)
    places = [position for start, end in structure_ranges for position in range(start, end)]
    for _ in range(n):
        copy = bytearray(data)
        for position in generator.sample(places, min(generator.choice((1, 1, 2, 4)), len(places))):
            old = copy[position]
            one_bit, any_byte = old ^ (1 << generator.randrange(8)), generator.randrange(256)
            new = generator.choice((0, 1, 0x7F, 0x80, 0xFF, one_bit, any_byte))
            copy[position] = new if new != old else old ^ 0x55
        yield bytes(copy)


def structure_ranges(model) -> list:
    """All of an open NbFile but the tensors' data: header, program, records, bundle."""
    ranges, position = [], 0
    for tensor in sorted(model.tensors.values(), key=lambda tensor: tensor.offset):
        ranges.append((position, tensor.offset))
        position = tensor.offset + tensor.nbytes
    ranges.append((position, model.size))
    return [(start, end) for start, end in ranges if start < end]


def main(source: str, folder: str) -> None:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from edge_kit.nb.reader import NbFile

    with NbFile(source) as model:
        ranges = structure_ranges(model)
    with open(source, "rb") as file:
        data = file.read()
    os.makedirs(folder, exist_ok=True)
    for kind, copies in (("cut", cuts(data, 50)), ("flip", flips(data, ranges, 500, seed=1))):
        for i, copy in enumerate(copies):
            with open(os.path.join(folder, f"{kind}_{i:03}.nb"), "wb") as file:
                file.write(copy)


if __name__ == "__main__":
    main(*sys.argv[1:])
