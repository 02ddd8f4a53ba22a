"""The native reader against the Python one: the same files accepted, the same content, never a signal."""
from __future__ import annotations

import math
import struct
import subprocess

import nb_toy
import numpy as np
import pytest
from attacks.mutate import cuts, flips, structure_ranges

from edge_kit.nb.format import AttrType
from edge_kit.nb.reader import NbFile
from lite_runtime import build
from lite_runtime.errors import FileFormatError

SANITIZERS = "address,undefined"


@pytest.fixture(scope="module", params=["release", pytest.param(SANITIZERS, marks=pytest.mark.sanitizer)])
def fuzz_nb(request):
    """The program tests/native/fuzz_nb.cc, plain and under the address and undefined-behaviour sanitizers."""
    sanitize = "" if request.param == "release" else request.param
    variant = build.Build(build.find_compiler(), sanitize=sanitize)
    if not variant.can_sanitize():
        pytest.skip(f"the C++ compiler has no sanitizers {sanitize}")
    return next(program for program in variant.tests() if program.name == "fuzz_nb")


def escaped(text: str) -> str:
    return " " + "".join(chr(c) if 32 < c < 127 and c != 92 else f"\\x{c:02x}" for c in text.encode())


def float_bits(value: float) -> str:
    return " nan" if math.isnan(value) else f" {struct.unpack('<I', struct.pack('<f', value))[0]:08x}"


def attribute_text(attr) -> str:
    kind = AttrType(attr.type)
    writers = {"STRING": escaped, "FLOAT": float_bits, "INT": " {:d}".format, "LONG": " {:d}".format}
    if kind == AttrType.BOOLEAN:
        return f" BOOLEAN {int(attr.value)}"
    writer = writers.get(kind.name.rstrip("S"))
    if writer is None:
        return " other"
    values = attr.value if kind.name.endswith("S") else [attr.value]
    return f" {kind.name}" + "".join(writer(value) for value in values)


def content(file: NbFile) -> list:
    """What fuzz_nb --dump prints for a file."""
    version = "".join(c if " " <= c <= "~" else "?" for c in file.opt_version)
    lines = ["ok", "version" + escaped(version)]
    variables = {var.name: var for var in file.program.vars}
    for op in file.program.ops:
        lines.append("op" + escaped(op.type))
        for side, arguments in (("in", op.inputs), ("out", op.outputs)):
            for parameter in sorted(arguments, key=str.encode):
                names = "".join(escaped(name) for name in arguments[parameter])
                lines.append(f" {side}{escaped(parameter)}{names}")
        for name in sorted(op.attrs, key=str.encode):
            lines.append(f" attr{escaped(name)}{attribute_text(op.attrs[name])}")
        for parameter in sorted(op.outputs, key=str.encode):
            for var in (variables.get(name) for name in op.outputs[parameter]):
                if var is not None and var.dtype is not None:
                    lines.append(f" var{escaped(var.name)} {var.dtype}" + "".join(f" {n}" for n in var.shape))
    for tensor in file.tensors.values():
        data = file.array(tensor.name).reshape(-1).view(np.uint8).astype(np.uint64)
        places = np.arange(1, data.size + 1, dtype=np.uint64)
        shape = "".join(f" {n}" for n in tensor.shape)
        lines.append(f"tensor{escaped(tensor.name)} {tensor.dtype} {int((data * places).sum())}{shape}")
    return lines


def python_verdict(path) -> list:
    try:
        with NbFile(path) as file:
            return content(file)
    except FileFormatError:
        return ["error"]


def native_verdicts(program, paths) -> list:
    """One list of lines per file. A crash or a hang fails the test and names the file."""
    verdicts = []
    done = subprocess.run([program, "--dump", *map(str, paths)], capture_output=True, text=True, timeout=120)
    for line in done.stdout.splitlines():
        if line == "ok" or line.startswith("error "):
            verdicts.append([line.split(" ")[0]])
        else:
            verdicts[-1].append(line)
    assert done.returncode == 0, f"{paths[max(len(verdicts) - 1, 0)]} or the next one: {done.stderr[-3000:]}"
    return verdicts


def compare(program, paths) -> list:
    """Checks that both readers agree on each file; gives what they said."""
    native = native_verdicts(program, paths)
    assert len(native) == len(paths)
    for path, found in zip(paths, native):
        assert found == python_verdict(path), path
    return native


def test_sound_files_read_alike(fuzz_nb, tmp_path, tiny_nb):
    toy = tmp_path / "toy.nb"
    nb_toy.write(toy)
    assert all(verdict[0] == "ok" and len(verdict) > 20 for verdict in compare(fuzz_nb, [toy, tiny_nb]))


def test_damaged_copies_read_alike(fuzz_nb, tmp_path):
    toy = tmp_path / "toy.nb"
    nb_toy.write(toy)
    with NbFile(toy) as file:
        ranges = structure_ranges(file)
    data = toy.read_bytes()
    paths = []
    for i, copy in enumerate([*cuts(data, 50), *flips(data, ranges, 500, seed=3)]):
        paths.append(tmp_path / f"{i}.nb")
        paths[-1].write_bytes(copy)
    verdicts = compare(fuzz_nb, paths)
    refused = sum(verdict == ["error"] for verdict in verdicts)
    assert 50 < refused < len(verdicts) - 50  # the copies try both outcomes


def test_damaged_copies_of_an_exported_model_read_alike(fuzz_nb, tmp_path, tiny_nb):
    with NbFile(tiny_nb) as file:
        ranges = structure_ranges(file)
    data = tiny_nb.read_bytes()
    paths = []
    for i, copy in enumerate([*cuts(data, 20), *flips(data, ranges, 60, seed=4)]):
        paths.append(tmp_path / f"{i}.nb")
        paths[-1].write_bytes(copy)
    compare(fuzz_nb, paths)
