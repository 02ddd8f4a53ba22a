"""Files of this library in stock Paddle Lite, the judge."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nb_toy
import numpy as np
import pytest
from attacks.mutate import cuts, flips, structure_ranges

from edge_kit.nb.bundle import read_manifest, write_bundle
from edge_kit.nb.program import Program, decode, encode
from edge_kit.nb.reader import NbFile
from edge_kit.nb.rewrite import align, retarget
from edge_kit.nb.writer import NbWriter
from lite_runtime.errors import FileFormatError, UnsupportedError

# Copies of the outputs: what numpy() gives dies with the predictor.
_RUN = """
import sys
import numpy as np
from paddlelite.lite import MobileConfig, create_paddle_predictor
config = MobileConfig()
config.set_model_from_file(sys.argv[1])
predictor = create_paddle_predictor(config)
inputs = np.load(sys.argv[2])
for i in range(len(inputs.files)):
    predictor.get_input(i).from_numpy(inputs[f"arr_{i}"])
predictor.run()
count = len(predictor.get_output_names())
np.savez(sys.argv[3], *[np.array(predictor.get_output(i).numpy()) for i in range(count)])
"""

# Embedding, linear with bias, normalisation, activations, a transposed matmul: among them ops whose arm
# picks differ from x86's in target, precision, or by fusion.
_TRACE = """
import os, sys
os.environ["FLAGS_enable_pir_api"] = "0"
import paddle
import paddle.nn.functional as F
paddle.seed(1)

class Toy(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.embedding = paddle.nn.Embedding(7, 8)
        self.linear = paddle.nn.Linear(8, 16)
        self.norm = paddle.nn.LayerNorm(16)
        self.head = self.create_parameter([5, 16])

    def forward(self, ids, x):
        h = self.norm(F.silu(self.linear(self.embedding(ids) + x)))
        y = F.softmax(paddle.matmul(h, self.head, transpose_y=True))
        z = paddle.concat([paddle.cos(h), paddle.sin(h)], axis=-1)
        return y, z.transpose([0, 2, 1]), paddle.cast(ids, "float32") * 0.5, paddle.rsqrt(h * h + 1.0)

model = Toy()
model.eval()
spec = [paddle.static.InputSpec([1, -1], "int64", "ids"), paddle.static.InputSpec([1, -1, 8], "float32", "x")]
paddle.jit.save(paddle.jit.to_static(model, input_spec=spec, full_graph=True), sys.argv[1])
"""


@pytest.fixture()
def run_stock(stock_python, tmp_path):
    """run_stock(path, inputs) -> outputs of the stock runtime."""

    def run(path, inputs: list) -> list:
        given, returned = tmp_path / "in.npz", tmp_path / "out.npz"
        np.savez(given, *inputs)
        command = [stock_python, "-c", _RUN, str(path), str(given), str(returned)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stdout + result.stderr
        outputs = np.load(returned)
        return [outputs[f"arr_{i}"] for i in range(len(outputs.files))]

    return run


@pytest.fixture(scope="module")
def opt_files(stock_python, tmp_path_factory):
    """target -> a `.nb` that paddle_lite_opt made of the traced toy."""
    pytest.importorskip("paddle", reason="the toy is traced with paddlepaddle")
    folder = tmp_path_factory.mktemp("opt")
    script = folder / "trace.py"  # to_static reads the source, so it must lie in a file
    script.write_text(_TRACE)
    trace = [sys.executable, str(script), str(folder / "toy")]
    subprocess.run(trace, check=True, timeout=120, capture_output=True)
    for target in ("x86", "arm"):
        command = [
            str(Path(stock_python).with_name("paddle_lite_opt")),
            f"--model_file={folder / 'toy.pdmodel'}",
            f"--param_file={folder / 'toy.pdiparams'}",
            "--optimize_out_type=naive_buffer",
            f"--valid_targets={target}",
            f"--optimize_out={folder / target}",
        ]
        subprocess.run(command, check=True, timeout=120, capture_output=True)
    return {target: folder / f"{target}.nb" for target in ("x86", "arm")}


def toy_inputs() -> list:
    x = np.random.default_rng(2).standard_normal((1, 3, 8)).astype(np.float32)
    return [np.array([[1, 2, 6]], np.int64), x]


def reencode(src, dst) -> None:
    """The same model with the program and the tensors written anew, tensors in reverse order."""
    with NbFile(src) as model, NbWriter(dst, model.program, model.opt_version) as writer:
        for tensor in reversed(model.tensors.values()):
            writer.add(tensor.name, tensor.dtype, tensor.shape, model.array(tensor.name))


def assert_equal(found: list, expected: list) -> None:
    assert len(found) == len(expected) > 0
    for a, b in zip(found, expected):
        assert a.shape == b.shape and np.array_equal(a, b)


def test_a_file_made_from_nothing_runs(run_stock, tmp_path):
    path = tmp_path / "toy.nb"
    nb_toy.write(path, bundle=lambda digest: {"manifest.json": b"{}"})
    x = np.random.default_rng(1).standard_normal((5, nb_toy.K)).astype(np.float32)
    (found,) = run_stock(path, [x])
    assert np.abs(found - nb_toy.expected(x)).max() < 1e-5 * np.abs(found).max()


def test_rewritten_files_give_identical_results(opt_files, run_stock, tmp_path):
    source = opt_files["x86"]
    expected = run_stock(source, toy_inputs())
    assert np.abs(expected[0]).max() > 0.1
    reencode(source, tmp_path / "reencoded.nb")
    align(source, tmp_path / "aligned.nb")
    for name in ("reencoded", "aligned"):
        path = tmp_path / f"{name}.nb"
        write_bundle(path, {"manifest.json": b'{"a": 1}', "tokenizer.json": bytes(3000)})
        assert_equal(run_stock(path, toy_inputs()), expected)
        assert read_manifest(path) == {"a": 1}
        with NbFile(path) as model, NbFile(source) as original:
            assert all(tensor.aligned for tensor in model.tensors.values())
            assert model.program == original.program
            for tensor_name in original.tensors:
                assert np.array_equal(model.array(tensor_name), original.array(tensor_name))


def test_retargeted_arm_file_gives_the_results_of_x86(opt_files, run_stock, tmp_path):
    copy = tmp_path / "copy.nb"
    assert retarget(opt_files["arm"], copy) > 0
    expected = run_stock(opt_files["x86"], toy_inputs())
    for a, b in zip(run_stock(copy, toy_inputs()), expected):
        assert np.abs(a - b).max() < 1e-6


@pytest.mark.parametrize("target", ["x86", "arm"])
def test_programs_of_opt_come_back_equal(opt_files, target):
    with NbFile(opt_files[target]) as model:
        program = model.program
        assert isinstance(program, Program) and len(program.ops) > 10
        assert decode(encode(program)) == program
        assert model.params_end == model.size
        assert model.largest_tensor == max(tensor.nbytes for tensor in model.tensors.values())


def test_damaged_files_of_opt_are_refused_or_read(opt_files, tmp_path):
    """Opt lays a tensor's name and sizes behind its data, other than our writer."""
    source = opt_files["arm"].read_bytes()
    with NbFile(opt_files["arm"]) as model:
        ranges = structure_ranges(model)
    path, copy = tmp_path / "x.nb", tmp_path / "copy.nb"
    refused = 0
    for data in [*cuts(source, 50), *flips(source, ranges, 500, seed=2)]:
        path.write_bytes(data)
        try:
            retarget(path, copy)
            align(path, copy)
        except (FileFormatError, UnsupportedError):
            refused += 1
    assert 250 < refused < 550
