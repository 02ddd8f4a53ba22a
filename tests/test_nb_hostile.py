"""Files that are not what they should be: one message that names the cause, never a crash or a hang."""

from __future__ import annotations

import os
import struct
import time

import nb_toy
import numpy as np
import pytest
from attacks.forest import blocks, nb_file, shared_ops
from attacks.mutate import cuts, flips, structure_ranges

from edge_kit.nb import errors
from edge_kit.nb import format as nb
from edge_kit.nb.bundle import read_bundle, write_bundle
from edge_kit.nb.inspect import describe, render
from edge_kit.nb.program import Program, Var
from edge_kit.nb.reader import NbFile
from edge_kit.nb.writer import NbWriter
from lite_runtime.errors import FileFormatError

SECONDS_PER_FILE = 2


@pytest.fixture(scope="module")
def toy_bytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("toy") / "toy.nb"
    nb_toy.write(path, bundle=lambda digest: {"manifest.json": b"{}", "tokenizer.json": b"{}"})
    return path.read_bytes()


@pytest.fixture()
def file(tmp_path):
    path = tmp_path / "x.nb"

    def put(data: bytes):
        path.write_bytes(data)
        return path

    return put


def read_all(path) -> None:
    """Opens the file and touches everything that a user could."""
    start = time.monotonic()
    try:
        with NbFile(path) as model:
            for name in model.tensors:
                model.array(name).sum()
        render(describe(path), with_tensors=True)
        read_bundle(path)
    finally:
        assert time.monotonic() - start < SECONDS_PER_FILE


def test_cut_files(toy_bytes, file):
    with NbFile(file(toy_bytes)) as model:
        end = model.params_end
    for data in cuts(toy_bytes, 50):
        if len(data) >= end:  # the model is whole, the bundle is not
            with pytest.raises(FileFormatError, match="bundle"):
                read_all(file(data))
            continue
        with pytest.raises((errors.TruncatedNbFile, errors.NotAnNbFile)) as caught:
            NbFile(file(data))
        assert (caught.type is errors.NotAnNbFile) == (not data)
        assert f"the file ends at {len(data)}" in str(caught.value) or not data


def test_a_cut_names_the_tensor_and_the_sizes(toy_bytes, file):
    with NbFile(file(toy_bytes)) as model:
        scale = model.tensors["proj.scale"]
    with pytest.raises(errors.TruncatedNbFile, match=r"tensor proj.scale needs bytes \d+ to \d+"):
        NbFile(file(toy_bytes[: scale.offset + 10]))


def test_flipped_bytes_of_the_structure(toy_bytes, file):
    with NbFile(file(toy_bytes)) as model:
        ranges = structure_ranges(model)
    refused = 0
    for data in flips(toy_bytes, ranges, 500, seed=1):
        path = file(data)
        try:
            read_all(path)
        except FileFormatError as error:
            refused += 1
            assert str(path) in str(error)
    assert refused > 100


def test_every_byte_of_the_first_tables(toy_bytes, file):
    for position in range(26, 426):
        data = bytearray(toy_bytes)
        data[position] ^= 0xFF
        try:
            read_all(file(bytes(data)))
        except FileFormatError:
            pass


@pytest.mark.parametrize(
    "content, named",
    [
        (b"", "an empty file"),
        (b"\n<!DOCTYPE html><html><head>", "a web page"),
        (b"<?xml version='1.0'?><Error>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git-LFS pointer"),
        (b"PK\x03\x04" + bytes(60), "zip archive"),
        (b"GGUF\x03\0\0\0" + bytes(60), "GGUF"),
        (struct.pack("<Q", 20) + b'{"a":{"dtype":"F32"}}' + bytes(60), "safetensors"),
        (b"\x80\x02}q\x00" + bytes(60), "pickle"),
        (b'{"base_code": {"magic": "pir"}}', "JSON"),
        (bytes(500), "zeros"),
        (b"Entry not found", "a text"),
        (b"\x01", "unknown kind"),
        (bytes(range(200, 256)), "unknown kind"),
    ],
)
def test_other_files_are_named_for_what_they_are(file, content, named):
    with pytest.raises(errors.NotAnNbFile, match=named):
        NbFile(file(content))


def test_pipes_and_devices_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        for function in (NbFile, describe, read_bundle, write_bundle):
            arguments = ({},) if function is write_bundle else ()
            with pytest.raises(FileFormatError, match="a device or a pipe"):
                function(path, *arguments)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileFormatError, match="cannot be read: No such file"):
        NbFile(tmp_path / "none.nb")
    with pytest.raises(FileFormatError, match="cannot be read"):
        NbFile(tmp_path)


@pytest.mark.parametrize("version", [0, 1, 3, 9])
def test_other_meta_versions(toy_bytes, file, version):
    with pytest.raises(errors.UnsupportedNbFile, match=f"meta version {version}"):
        NbFile(file(struct.pack("<H", version) + toy_bytes[2:]))


def test_sizes_that_wrap(toy_bytes, file):
    for huge in (len(toy_bytes), 2**32, 2**63, 2**64 - 1, 2**64 - 26):
        with pytest.raises(errors.TruncatedNbFile, match="the program"):
            NbFile(file(toy_bytes[:18] + struct.pack("<Q", huge) + toy_bytes[26:]))


def test_missing_parameter_is_its_own_error(tmp_path):
    path = tmp_path / "toy.nb"
    with pytest.raises(errors.MissingTensor, match="proj.weight"):
        with NbWriter(path, nb_toy.program(), nb_toy.OPT_VERSION) as writer:
            for name in ("proj.bias", "proj.scale"):
                value = nb_toy.tensors()[name]
                writer.add(name, value.dtype.name, value.shape, value)


def test_several_blocks_are_unsupported(file):
    with NbFile(file(nb_file(blocks(1)))) as model:
        assert model.program == Program(0, [], [])
    with pytest.raises(errors.UnsupportedNbFile, match="2 blocks"):
        NbFile(file(nb_file(blocks(2))))
    with pytest.raises(errors.DamagedNbFile, match="no block"):
        NbFile(file(nb_file(blocks(0))))


def test_overlapping_tables_end_in_an_error_not_a_hang(file):
    with NbFile(file(nb_file(shared_ops(2)))) as model:
        assert [list(op.attrs) for op in model.program.ops] == [["a"], ["a"]]
    start = time.monotonic()
    with pytest.raises(errors.DamagedNbFile, match="overlap"):
        NbFile(file(nb_file(shared_ops(100_000))))
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("shape", [(-1, 4), (2**33, 0), (3,), (0, 2**31, 2**31, 2**31), (2**32 - 1,) * 3])
def test_shapes_that_contradict_the_data(tmp_path, shape):
    path = tmp_path / "x.nb"
    with NbWriter(path, Program(0, [], []), "v0") as writer:
        writer.add("w", "int8", (1,) * len(shape), b"x")
    data = bytearray(path.read_bytes())
    with NbFile(path) as model:
        sizes_at = model.tensors["w"].offset - 4 - 8 * len(shape)  # in front of the data and its length
    struct.pack_into(f"<{len(shape)}q", data, sizes_at, *shape)
    path.write_bytes(bytes(data))
    with pytest.raises(errors.DamagedNbFile, match="tensor w"):
        NbFile(path)


def test_a_count_of_sizes_beyond_the_file(tmp_path):
    path = tmp_path / "x.nb"
    with NbWriter(path, Program(0, [], []), "v0") as writer:
        writer.add("w", "int8", (1,), b"x")
    data = bytearray(path.read_bytes())
    with NbFile(path) as model:
        struct.pack_into("<I", data, model.tensors["w"].offset - 4 - 8 - 4, 0xFFFFFFFF)
    path.write_bytes(bytes(data))
    with pytest.raises(errors.DamagedNbFile, match="tensor w.*outside"):
        NbFile(path)


def test_duplicate_tensor_names(tmp_path):
    path = tmp_path / "x.nb"
    with NbWriter(path, Program(0, [], [Var("w1", dtype="int8", shape=[1])]), "v0") as writer:
        writer.add("w1", "int8", (1,), b"x")
        writer.add("w2", "int8", (1,), b"x")
    path.write_bytes(path.read_bytes().replace(b"w2", b"w1"))
    with pytest.raises(errors.DamagedNbFile, match="two tensors are named w1"):
        NbFile(path)


def test_zip_that_points_into_the_tensors(tmp_path):
    """Entries are read from behind the tensors alone."""
    path = tmp_path / "x.nb"
    nb_toy.write(path)
    write_bundle(path, {"a": b"1" * 50})
    data = bytearray(path.read_bytes())
    central = data.rfind(b"PK\x01\x02")
    struct.pack_into("<I", data, central + 42, 0)  # offset of the entry: the start of the file
    path.write_bytes(bytes(data))
    with pytest.raises(FileFormatError, match="bundle"):
        read_bundle(path)


def test_unaligned_tensors_are_read(tmp_path):
    """Files of opt align nothing; an odd offset still gives the right numbers."""
    path = tmp_path / "x.nb"
    value = np.arange(5, dtype=np.float32)
    with NbWriter(path, Program(0, [], []), "v0") as writer:
        writer.add("w", "float32", (5,), value)
    data = path.read_bytes()
    record = 26 + struct.unpack_from("<Q", data, 18)[0] + nb.PARAMS_HEADER.size
    total, offset = nb.RECORD_HEADER.unpack_from(data, record)
    shorter = nb.RECORD_HEADER.pack(total - 1, offset - 1) + data[record + 9 :]
    path.write_bytes(data[:record] + shorter)
    with NbFile(path) as model:
        assert model.tensors["w"].offset % 4 == 3 and not model.tensors["w"].aligned
        assert np.array_equal(model.array("w"), value)
