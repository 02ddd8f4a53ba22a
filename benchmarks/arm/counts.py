"""Instructions that a linear layer executes, counted in an emulator: exact, and the same in every run."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

# What a layer costs is a constant (activations quantized, set-up) and so much per output, so two small ones,
# with so many outputs and twice as many, tell what one of any size costs. 64 are whole parts of what either
# engine works through: four tiles, a chunk. With few rows more outputs: llama.cpp allocates memory in every
# layer, which does not always take the same.
_OUTPUTS, _OUTPUTS_OF_FEW_ROWS = 64, 512
_REPETITIONS = 4
_SECONDS = 600  # no run takes as many


class CountError(Exception):
    """A program could not be run in the emulator; the text says which."""


class Emulator:
    """qemu-aarch64 as one CPU, with the counting plugin."""

    def __init__(self, cpu: str, plugin: Path):
        self.cpu, self.plugin = cpu, plugin

    def run(self, program: Path, rows: int, n: int, k: int, repetitions: int, trace=None) -> tuple:
        """(instructions, what the program printed); the trace goes to the file `trace`, if there is one."""
        with tempfile.TemporaryDirectory() as folder:
            count = Path(folder) / "count"
            plugin = f"{self.plugin},count={count}" + (f",trace={trace}" if trace else "")
            command = ["qemu-aarch64", "-cpu", self.cpu, "-plugin", plugin, str(program)]
            command += [str(value) for value in (rows, n, k, repetitions)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
            except subprocess.TimeoutExpired:
                raise CountError(f"{' '.join(command)}: no end after {_SECONDS} s") from None
            if done.returncode or not count.exists():
                raise CountError(f"{' '.join(command)}: exit status {done.returncode}, {done.stderr.strip()}")
            return int(count.read_text()), done.stdout.strip()

    def layer(self, program: Path, rows: int, n: int, k: int) -> float:
        """Instructions of one layer: those after the first take that many more each."""
        many = self.run(program, rows, n, k, _REPETITIONS)[0]
        return (many - self.run(program, rows, n, k, 1)[0]) / (_REPETITIONS - 1)

    def per_mac(self, program: Path, rows: int, n: int, k: int) -> dict:
        """Of a layer with `n` outputs, per multiply-accumulate: "products" per output, "rest" once per layer
        (activations quantized, set-up), "total" of both."""
        outputs = _OUTPUTS if rows >= 16 else _OUTPUTS_OF_FEW_ROWS
        few, many = self.layer(program, rows, outputs, k), self.layer(program, rows, 2 * outputs, k)
        products = (many - few) / outputs
        rest = few - products * outputs
        macs = rows * k
        return {"products": products / macs, "rest": rest / (macs * n), "total": (products + rest / n) / macs}

    def trace(self, program: Path, rows: int, n: int, k: int) -> bytes:
        """Addresses and lengths of the blocks that one layer executes, see instructions.cc."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace"
            self.run(program, rows, n, k, 1, path)
            return path.read_bytes()
