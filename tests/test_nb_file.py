"""Writing, reading and bundling `.nb` files."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile

import nb_toy
import numpy as np
import pytest

from edge_kit.nb import bundle, tiles
from edge_kit.nb.inspect import describe, render
from edge_kit.nb.reader import NbFile
from edge_kit.nb.rewrite import align, retarget
from edge_kit.nb.writer import NbWriter
from lite_runtime.errors import FileFormatError, UnsupportedError, UsageError

FILES = {"manifest.json": b'{"model": "toy"}', "tokenizer.json": "今有雉兔".encode()}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@pytest.fixture()
def toy(tmp_path):
    path = tmp_path / "toy.nb"
    nb_toy.write(path)
    return path


def test_tensors_come_back_aligned_and_without_a_copy(toy):
    with NbFile(toy) as model:
        assert (model.meta_version, model.opt_version) == (2, nb_toy.OPT_VERSION)
        assert model.program == nb_toy.program()
        assert list(model.tensors) == list(nb_toy.tensors())
        for name, value in nb_toy.tensors().items():
            view = model.array(name)
            assert np.array_equal(view, value) and view.dtype == value.dtype
            assert model.tensors[name].aligned and view.base is not None and not view.flags.writeable
        assert model.largest_tensor == nb_toy.N * nb_toy.K
        assert model.params_end == model.size


def test_array_outlives_its_file(toy):
    with NbFile(toy) as model:
        view = model.array("proj.bias")
    assert np.array_equal(view, nb_toy.tensors()["proj.bias"])


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 5), (7, 13), (2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "float32", "bool"])
def test_every_shape_and_type_comes_back(tmp_path, shape, dtype):
    values = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    path = tmp_path / "one.nb"
    with NbWriter(path, nb_toy.program().__class__(0, [], []), "v0") as writer:
        writer.add("", "uint8", (3,), b"abc")
        writer.add("名前" * 9, dtype, shape, values)
    with NbFile(path) as model:
        found = model.array("名前" * 9)
        assert found.shape == shape and found.dtype == dtype and np.array_equal(found, values)
        assert bytes(model.array("")) == b"abc"


def test_chunks_equal_one_array(tmp_path, toy):
    path = tmp_path / "chunks.nb"
    with NbWriter(path, nb_toy.program(), nb_toy.OPT_VERSION) as writer:
        for name, value in nb_toy.tensors().items():
            writer.add(name, value.dtype.name, value.shape, (row for row in value))
    assert path.read_bytes() == toy.read_bytes()


def test_a_failed_write_leaves_the_old_file_and_no_partial(toy):
    before = toy.read_bytes()
    with pytest.raises(UsageError, match="proj.bias.*192 bytes, 188 were given"):
        with NbWriter(toy, nb_toy.program(), nb_toy.OPT_VERSION) as writer:
            writer.add("proj.bias", "float32", (48,), np.zeros(47, np.float32))
    with pytest.raises(FileFormatError, match="parameter proj.bias"):
        NbWriter(toy, nb_toy.program(), nb_toy.OPT_VERSION).close()
    with pytest.raises(KeyError):
        nb_toy.write(toy, bundle=lambda digest: {}["none"])
    assert toy.read_bytes() == before and os.listdir(toy.parent) == ["toy.nb"]


def test_writer_refuses_what_the_format_cannot_hold(tmp_path):
    with NbWriter(tmp_path / "x.nb", nb_toy.program().__class__(0, [], []), "v0") as writer:
        with pytest.raises(UsageError, match="4 GiB"):
            writer.add("big", "float32", (1 << 15, 1 << 15), b"")
        with pytest.raises(UsageError, match="bfloat16"):
            writer.add("w", "bfloat16", (1,), b"xx")
        with pytest.raises(UsageError, match="float64"):
            writer.add("w", "float32", (1,), np.zeros(1))
        writer.add("w", "float32", (1,), np.zeros(1, np.float32))
        with pytest.raises(UsageError, match="twice"):
            writer.add("w", "float32", (1,), np.zeros(1, np.float32))
    with pytest.raises(UsageError, match="at most 15"):
        NbWriter(tmp_path / "y.nb", nb_toy.program(), "v" * 16)
    with pytest.raises(UsageError, match="cannot be written"):
        NbWriter(tmp_path / "none" / "y.nb", nb_toy.program(), "v0")


def test_writing_a_large_tensor_takes_no_memory_of_its_size(tmp_path):
    code = f"""
import sys, resource
sys.path[:0] = [{ROOT!r}]
import numpy as np
from edge_kit.nb.program import Program
from edge_kit.nb.writer import NbWriter
from edge_kit.nb.rewrite import align
chunk = np.ones(1 << 20, np.int8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
bundle = lambda digest: {{"manifest.json": b"{{}}"}}
with NbWriter({str(tmp_path / "a.nb")!r}, Program(0, [], []), "v0", bundle) as w:
    w.add("w", "int8", (256, 1 << 20), (chunk for _ in range(256)))
align({str(tmp_path / "a.nb")!r}, {str(tmp_path / "b.nb")!r})
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) / (1 if sys.platform == "darwin" else 1 / 1024) / 1e6)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    assert float(out.stdout) < 64  # MB; the tensor has 268


def test_bundle_opens_with_zipfile_and_leaves_the_model_alone(toy):
    model_bytes = toy.read_bytes()
    bundle.write_bundle(toy, {"manifest.json": b"{}"})
    bundle.write_bundle(toy, FILES)
    assert toy.read_bytes().startswith(model_bytes)
    assert bundle.read_bundle(toy) == FILES
    assert bundle.read_manifest(toy) == {"model": "toy"}
    assert bundle.model_digest(toy) == hashlib.sha256(model_bytes).hexdigest()
    with zipfile.ZipFile(toy) as archive:
        assert archive.testzip() is None
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
    with NbFile(toy) as model:
        assert model.params_end == len(model_bytes)


def test_writer_appends_the_bundle_with_the_digest(tmp_path):
    path = tmp_path / "toy.nb"
    nb_toy.write(path, bundle=lambda digest: {"manifest.json": b'{"digest": "%s"}' % digest.encode()})
    assert bundle.read_manifest(path)["digest"] == bundle.model_digest(path)
    again = tmp_path / "again.nb"
    nb_toy.write(again, bundle=lambda digest: {"manifest.json": b'{"digest": "%s"}' % digest.encode()})
    assert path.read_bytes() == again.read_bytes()


def test_bundle_that_is_missing_cut_or_damaged_is_named(toy):
    with pytest.raises(FileFormatError, match="no bundle"):
        bundle.read_bundle(toy)
    with NbFile(toy) as model:
        end = model.params_end
    bundle.write_bundle(toy, {"a": b"1"})
    with pytest.raises(FileFormatError, match="no manifest.json"):
        bundle.read_manifest(toy)
    for text in (b"[1]", b"{", b"[" * 100_000, b"\xff"):
        bundle.write_bundle(toy, {"manifest.json": text})
        with pytest.raises(FileFormatError, match="manifest.json"):
            bundle.read_manifest(toy)
    bundle.write_bundle(toy, FILES)
    whole = toy.read_bytes()
    for length in range(end + 1, len(whole)):
        toy.write_bytes(whole[:length])
        with pytest.raises(FileFormatError, match="bundle"):
            bundle.read_bundle(toy)
    for position in range(end, len(whole)):
        toy.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
        try:
            bundle.read_bundle(toy)
        except FileFormatError:
            pass


def test_align_keeps_program_and_tensors(tmp_path, toy):
    other = tmp_path / "other.nb"
    align(toy, other)
    assert other.read_bytes() == toy.read_bytes()


def test_retarget_changes_kernel_picks_alone(tmp_path):
    arm, x86, copy = tmp_path / "arm.nb", tmp_path / "x86.nb", tmp_path / "copy.nb"
    nb_toy.write(arm, "arm")
    nb_toy.write(x86, "x86")
    assert retarget(arm, copy) == 4  # transpose2, matmul_v2, elementwise_mul, elementwise_add
    assert copy.read_bytes() == x86.read_bytes()
    assert retarget(x86, copy) == 0
    with pytest.raises(UsageError):
        retarget(arm, copy, "arm")


def test_retarget_names_an_op_without_x86_kernel(tmp_path):
    program = nb_toy.program("arm")
    kernel = program.ops[4].attrs["__@kernel_type_attr@__"]
    program.ops[4].attrs["__@kernel_type_attr@__"] = kernel._replace(value="lstm/def/4/1/1")
    path = tmp_path / "toy.nb"
    with NbWriter(path, program, nb_toy.OPT_VERSION) as writer:
        for name, value in nb_toy.tensors().items():
            writer.add(name, value.dtype.name, value.shape, value)
    with pytest.raises(UnsupportedError, match="lstm"):
        retarget(path, tmp_path / "copy.nb")
    assert sorted(os.listdir(tmp_path)) == ["toy.nb"]


def test_tiles_lie_in_the_order_of_the_kernels():
    weight = np.arange(32 * 8, dtype=np.int16).reshape(32, 8)
    packed = tiles.pack(weight)
    assert packed.shape == (2, 2, 16, 4)
    assert packed[1, 1, 3, 2] == weight[16 + 3, 4 + 2]
    assert np.array_equal(tiles.unpack(packed), weight)
    assert tiles.tileable(16, 4) and not tiles.tileable(8, 4) and not tiles.tileable(16, 6)
    with pytest.raises(UsageError):
        tiles.pack(weight[:15])
    with pytest.raises(UsageError):
        tiles.unpack(weight)


def test_describe_tells_what_is_there(toy):
    bundle.write_bundle(toy, FILES)
    found = describe(toy)
    assert found["target"] == "x86" and found["paddle_version"] == "3.1.1"
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": [-1, nb_toy.K]}]
    assert found["outputs"][0]["name"] == "y2"
    assert found["op_counts"]["matmul_v2"] == 1
    assert found["dtype_bytes"] == {"int8": nb_toy.N * nb_toy.K, "float32": 8 * nb_toy.N}
    assert found["int8_share"] == pytest.approx(0.8)
    assert found["unaligned_tensors"] == 0
    assert found["manifest"] == {"model": "toy"}
    text = render(found, with_tensors=True)
    for part in ("v2.13-rc", "all aligned", "proj.weight", "80.000%", "tokenizer.json", "x float32 [-1, 32]"):
        assert part in text


def test_reading_needs_numpy_alone(toy):
    code = (
        f"import sys; sys.path[:0] = [{ROOT!r}]\n"
        "from edge_kit.nb.reader import NbFile; from edge_kit.nb.bundle import read_bundle\n"
        f"NbFile({str(toy)!r}).array('proj.bias')\n"
        "print([name for name in ('flatbuffers', 'paddle', 'tokenizers') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert out.stdout.strip() == "[]", out.stderr
