"""`edge-kit plan`: sizes as the runtime reports them, the longest context that fits, speeds by bandwidth."""

from __future__ import annotations

import argparse
import json
import re

import pytest

import lite_runtime
from edge_kit import plan, targets
from edge_kit.cli import main
from edge_kit.commands.plan import ram_bytes
from lite_runtime import machine

KERNELS_H = "lite_runtime/src/kernels/kernels.h"

# A model of 1 GB with 28 layers of 2 heads of 128: 28,672 bytes of fp16 per token.
NEEDS = plan.Needs(
    file_bytes=1_000_000_000,
    workspace_bytes=20_000_000,
    parameter_bytes_per_token=900_000_000,
    n_ctx=32768,
    kv_bytes={"f16": 28672, "int8": 14784},
    target="arm",
)


@pytest.mark.parametrize(
    "text, size",
    [("2G", 2 << 30), ("512M", 512 << 20), ("4GiB", 4 << 30), ("1.5GB", 3 << 29), ("8 g", 1 << 33)],
)
def test_sizes_of_memory(text, size):
    assert ram_bytes(text) == size


@pytest.mark.parametrize("text", ["2", "G", "-2G", "2K", "two", "0G", "2G2", "1e3G", "9999999T"])
def test_other_sizes_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected a size such as 2G, 512M or 4GiB"):
        ram_bytes(text)


def test_constants_are_the_runtimes(native_library):
    root = native_library.parents[1]
    (block,) = re.findall(r"kCacheBlock = (\d+);", (root / KERNELS_H).read_text())
    (rows,) = re.findall(r"kChunkRows = (\d+);", (root / "lite_runtime/src/engine/chunk.h").read_text())
    assert plan.CACHE_BLOCK == int(block)
    assert plan.FP16_BLOCKS == -(-int(rows) // int(block)) + 2


def test_cache_bytes():
    assert NEEDS.cache_bytes("f16", 1) == NEEDS.cache_bytes("f16", 64) == 64 * 28672
    assert NEEDS.cache_bytes("f16", 65) == 128 * 28672
    # int8 from a full block on, and the fp16 of at most six blocks beside it
    assert NEEDS.cache_bytes("int8", 63) == 64 * 28672
    assert NEEDS.cache_bytes("int8", 64) == 64 * (28672 + 14784)
    assert NEEDS.cache_bytes("int8", 6400) == 6400 * 14784 + 6 * 64 * 28672


@pytest.mark.parametrize("kv_dtype", ["f16", "int8"])
def test_the_longest_context_is_the_last_that_fits(kv_dtype):
    for memory in (1_200_000_000, 1_300_000_000, 1_555_555_555):
        longest = NEEDS.longest_context(kv_dtype, memory)
        assert 0 < longest < NEEDS.n_ctx
        assert NEEDS.resident_bytes(kv_dtype, longest) <= memory
        assert NEEDS.resident_bytes(kv_dtype, longest + 64) > memory
    assert NEEDS.longest_context(kv_dtype, NEEDS.resident_bytes(kv_dtype, NEEDS.n_ctx)) == NEEDS.n_ctx
    assert NEEDS.longest_context(kv_dtype, 10**13) == NEEDS.n_ctx
    assert NEEDS.longest_context(kv_dtype, 1_000_000_000) == 0


def test_a_fit_and_its_speeds():
    memory = NEEDS.resident_bytes("f16", 2048)
    found = plan.fit(NEEDS, memory + 5, 5, "f16", (3.4e9, 5e9))
    assert found.fits and found.n_ctx == 2048 and found.missing == 0
    assert list(found.speeds) == [0, 1024, 2048]
    assert found.speeds[0] == pytest.approx((3.4 / 0.9, 5 / 0.9))
    assert found.speeds[2048][0] == pytest.approx(3.4e9 / (900_000_000 + 2048 * 28672))
    assert plan.fit(NEEDS, memory, 0, "f16", None).speeds == {}
    short = plan.fit(NEEDS, NEEDS.resident_bytes("f16", 1024), 7, "f16", (1e9, 1e9))
    assert not short.fits and short.missing == 7 and short.n_ctx == 960


def test_needs_are_those_of_the_runtime(tiny_nb, native_library, monkeypatch):
    with lite_runtime.load(tiny_nb) as model:
        info = model.info
    monkeypatch.setattr(machine, "available_memory", lambda: 0)  # a file larger than this machine's memory
    needs = plan.read_needs(str(tiny_nb))
    assert needs.file_bytes == info.file_bytes == tiny_nb.stat().st_size
    assert needs.workspace_bytes == info.workspace_bytes > 256 * 4 * info.hidden_size
    assert needs.parameter_bytes_per_token == info.parameter_bytes_per_token
    assert needs.kv_bytes["f16"] == info.kv_bytes_per_token
    assert needs.kv_bytes["f16"] == 2 * 2 * info.n_layers * info.n_kv_heads * info.head_dim
    assert needs.kv_bytes["f16"] / 2 < needs.kv_bytes["int8"] < needs.kv_bytes["f16"]
    assert needs.n_ctx == info.n_ctx and needs.target == "x86"


def test_command_for_a_pi(tiny_nb, native_library, capsys):
    assert main(["plan", str(tiny_nb), "--target", "rpi4", "--ram", "2G", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["threads"], report["isa_levels"]) == (4, ["neon", "scalar"])
    assert report["fits"] and report["target"] == "rpi4" and report["read_bandwidth"] == [3.4e9, 5e9]
    assert [(row["ram"], row["kv_dtype"], row["n_ctx"]) for row in report["plans"]] == [
        (2 << 30, "f16", 2048),
        (2 << 30, "int8", 2048),
    ]
    low, high = report["plans"][0]["speeds"]["0"]
    assert low == pytest.approx(3.4e9 / report["parameter_bytes_per_token"]) and high > low


def test_table_and_status(tiny_nb, native_library, capsys):
    assert main(["plan", str(tiny_nb), "--target", "rpi5"]) == 0
    text = capsys.readouterr().out
    assert [line.split()[0] for line in text.splitlines() if " f16 " in line] == ["2", "4", "8", "16"]
    assert "at 10.2 GB/s (reported by others, not measured here)" in text
    assert "4 threads, the best kernel path of neon-dotprod, neon, scalar\n" in text
    assert main(["plan", str(tiny_nb), "--target", "rpi5", "--ram", "128M"]) == 1
    text = capsys.readouterr().out
    assert len(re.findall(r"does not fit: \d+ MB", text)) == 2 and "MB short at 1024 tokens" in text
    assert len(re.findall(r"^128 MiB +(?:f16|int8) ", text, re.MULTILINE)) == 2
    assert text.splitlines()[-1].startswith("It does not fit:")


def test_a_bandwidth_of_ones_own(tiny_nb, native_library, capsys):
    arguments = ["plan", str(tiny_nb), "--ram", "8G"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "on x86, " in text and "No read bandwidth is known for target x86" in text
    assert main([*arguments, "--bandwidth", "20"]) == 0
    assert "at 20.0 GB/s (given by --bandwidth)" in capsys.readouterr().out
    assert main([*arguments, "--target", "rpi4"]) == 0  # columns stay apart, whatever stands in them
    rows = [line for line in capsys.readouterr().out.splitlines() if " f16 " in line]
    assert len(rows[0].split()) == len("4 GiB f16 2048".split()) + 3 * len("1.0 to 2.0".split())


@pytest.mark.parametrize(
    "line, message",
    [
        ("plan none.nb --target rpi4", "none.nb: cannot be read: No such file"),
        ("plan {tiny} --target rpi6", "--target rpi6, expected one of .*; did you mean"),
        ("plan {tiny} --ram 2", "--ram: '2', expected a size such as 2G"),
        ("plan {tiny}", "--ram: machines of target x86 differ; give a size"),
        ("plan {tiny} --bandwidth nan", "--bandwidth: 'nan', expected GB/s above 0"),
        ("plan {tiny} --bandwidth 1e308", "--bandwidth: '1e308', expected GB/s above 0, such as"),
        ("plan", "required: FILE"),
    ],
)
def test_errors_are_one_line(line, message, tiny_nb, native_library, capsys):
    assert main(line.format(tiny=tiny_nb).split()) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert re.search(message, captured.err), captured.err


def test_every_target_with_sizes_can_be_planned_for(tiny_nb, native_library, capsys):
    for name in targets.names():
        if targets.get(name).memory.sizes:
            assert main(["plan", str(tiny_nb), "--target", name]) == 0
