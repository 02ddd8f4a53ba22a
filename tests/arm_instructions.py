"""Which instructions an ARM object file holds, and which of them it must not."""

from __future__ import annotations

import re
import subprocess

# Instructions beyond ARMv8.0 -> the words that name the files and functions which may hold them.
EXTENSIONS = {
    r"[su]dot": "dotprod|i8mm",
    r"([su]|us)mmla|usdot|sudot": "i8mm",
    # Atomics, rounding multiplication, complex numbers, bfloat16: compilers choose these by themselves.
    r"(ld|st)(add|set|clr|eor|[su]max|[su]min)[alhb]*|swp[alhb]*|casp?[alhb]*|ldapr[hb]?": "nowhere",
    r"sqrdml[as]h|fcmla|fcadd|bf(dot|mmla|mlal[bt]|cvtn?2?)": "nowhere",
}


def instructions(path) -> dict:
    """Function -> mnemonics of one object file."""
    listing = subprocess.run(
        ["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", str(path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    functions: dict = {}
    for line in listing.splitlines():
        heading = re.fullmatch(r"[0-9a-f]+ <(.+)>:", line)
        if heading:
            found = functions.setdefault(heading[1], set())
        elif "\t" in line:
            found.add(line.split("\t")[1].strip())
    return functions


def misplaced(file_name: str, functions: dict) -> list:
    """What stands where it must not: "file function instruction"."""
    return [
        f"{file_name} {function} {mnemonic}"
        for function, mnemonics in functions.items()
        for mnemonic in sorted(mnemonics)
        for extension, words in EXTENSIONS.items()
        if re.fullmatch(extension, mnemonic) and not re.search(words, f"{file_name} {function}")
    ]
