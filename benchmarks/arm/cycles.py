"""Cycles per multiply-accumulate by `llvm-mca`, of the instructions that a program was seen to execute.

What is simulated is no loop picked from a listing but the trace of a run, from the first to the last vector
multiplication of bytes: inner loop, prefetches, what is done per group, panel and tile, all as often as it
happens. `llvm-mca` knows the units and latencies of a core; it takes every load for a hit in L1 and every
branch for foreseen, and so tells what bounds a loop whose data is at hand.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

# Vector instruction -> multiply-accumulates of bytes in one.
MACS = {"smull": 8, "smull2": 8, "smlal": 8, "smlal2": 8, "sdot": 16, "smmla": 32}
_WINDOW = 160_000  # instructions of a long trace that are simulated, from its middle
_BRANCH = re.compile(r"(b|b\.\w+|bl|cbn?z|tbn?z|adrp|adr)\t")


class CyclesError(Exception):
    """The trace cannot be simulated; the text says why."""


def instructions(program: Path, trace: bytes, objdump: str) -> list:
    """The instructions of a trace of `program` (see instructions.cc) as assembler text, in order."""
    words = memoryview(trace).cast("Q").tolist()
    blocks = list(zip(words[::2], words[1::2]))
    first = min(address for address, _ in blocks)
    last = max(address + 4 * count for address, count in blocks)
    command = [objdump, "-d", "--no-show-raw-insn", f"--start-address={first}", f"--stop-address={last}"]
    listing = subprocess.run([*command, str(program)], capture_output=True, text=True, check=True).stdout
    text = {}
    for line in listing.splitlines():
        match = re.match(r" *([0-9a-f]+):\t(.+)", line)
        if match:
            text[int(match[1], 16)] = match[2]
    return [text[address + 4 * i] for address, count in blocks for i in range(count)]


def macs(line: str) -> int:
    """Multiply-accumulates of bytes in one instruction; 0 for the scalar `smull`, and for any other."""
    mnemonic, _, operands = line.partition("\t")
    return MACS.get(mnemonic, 0) if operands.startswith("v") else 0


def products(lines: list) -> list:
    """A trace from the first to the last multiplication, or _WINDOW instructions of its middle."""
    at = [i for i, line in enumerate(lines) if macs(line)]
    if not at:
        raise CyclesError("the trace holds no vector multiplication of bytes")
    begin, end = at[0], at[-1] + 1
    if end - begin > _WINDOW:
        begin = (begin + end - _WINDOW) // 2
        end = begin + _WINDOW
    return lines[begin:end]


def assembler(line: str) -> str:
    """An instruction as llvm-mca takes it: straight on, so a branch or an address leads nowhere."""
    line = re.sub(r"\s*(//.*|<.*)$", "", line)
    if line.split("\t")[0] in ("ret", "br", "blr"):
        return "b\t#0"
    if _BRANCH.match(line):
        line = re.sub(r"(?<=[\t ])[0-9a-f]+$", "#0", line)
        return re.sub(r"^bl\t", "b\t", line)
    return line


def cycles_per_mac(lines: list, cpu: str, llvm_mca: str) -> float:
    """Cycles of the part of a trace that multiplies, per multiply-accumulate."""
    part = products(lines)
    command = [llvm_mca, "-mtriple=aarch64-linux-gnu", f"-mcpu={cpu}", "-iterations=1"]
    command += ["-instruction-info=0", "-resource-pressure=0"]
    text = "\n".join(map(assembler, part)) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    match = re.search(r"^Total Cycles:\s+(\d+)", done.stdout, re.MULTILINE)
    if done.returncode or not match:
        raise CyclesError(f"{llvm_mca} -mcpu={cpu}: {done.stderr.strip().splitlines()[0]}")
    return int(match[1]) / sum(map(macs, part))


def version(llvm_mca: str) -> str:
    """As "19.1.7"."""
    text = subprocess.run([llvm_mca, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"LLVM version (\S+)", text)[1]
