"""The stages of an export, each with its post-condition: open, trace, quantize, optimize, write, bundle."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from edge_kit import targets
from edge_kit.nb.bundle import MANIFEST
from edge_kit.nb.program import Program
from edge_kit.nb.reader import NbFile
from edge_kit.nb.writer import NbWriter
from lite_runtime import machine
from lite_runtime.errors import EdgeKitError, UnsupportedError, UsageError

from . import chat_template, lower, paddlelite, passes
from .checkpoint import open_checkpoint
from .checkpoint.file_kinds import to_json
from .manifest import build_manifest
from .progress import Progress
from .tensors import CheckpointTensors, DygraphTensors, build_decoder
from .trace import trace_program

# What the kit's own writer puts in the header: the opt version whose format and kernel picks it follows.
OPT_VERSION = "v2.13-rc"
# Up to this many parameters the whole dygraph decoder is built; above, its tensors are made one at a time.
_DYGRAPH_LIMIT = 300_000_000
_INT8_SHARE = 0.99  # of the parameter bytes, from _INT8_SHARE_FROM parameters on
_INT8_SHARE_FROM = 100_000_000


@dataclass
class Summary:
    """What an export did; sizes in bytes, times in seconds."""

    out: str
    model: str
    target: str
    quant: str
    optimizer: str
    file_bytes: int = 0
    parameters: int = 0
    int8_share: float = 0.0
    largest_error: float = 0.0
    largest_error_tensor: str = ""
    model_digest: str = ""
    chat_format: dict | None = None  # as in the manifest
    seconds: dict[str, float] = field(default_factory=dict)
    peak_rss_bytes: int = 0
    warnings: list[str] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict:
        """What `--json` prints."""
        return asdict(self)


def export_model(
    model: str, target: str, quant: str, optimizer: str, out: str | None, progress: Progress
) -> Summary:
    """Exports `model` (folder, .gguf file, "demo" or "random:NAME") to one `.nb` file.

    `target` is a name in `edge_kit.targets`, `quant` "int8" or "fp32", `optimizer` "auto", "paddlelite" or
    "builtin". Nothing stands at `out` until the file is whole. Raises EdgeKitError.
    """
    place = targets.get(target).opt_place
    opt = None if optimizer == "builtin" else paddlelite.find_opt()
    if optimizer == "paddlelite" and opt is None:
        raise UsageError(
            "--optimizer paddlelite: no paddle_lite_opt found; install paddlelite==2.13rc0 in a Python "
            "3.10 and set EDGE_KIT_STOCK_PYTHON to it, or use --optimizer builtin"
        )
    out_path = None if out is None else _writable(out)
    with progress.stage("open checkpoint"):
        checkpoint = open_checkpoint(model)
    out_path = out_path or _writable(f"{checkpoint.config.name.lower()}.{target}.nb")
    summary = Summary(str(out_path), model, target, quant, "builtin" if opt is None else "paddlelite")
    with progress.stage("reduce chat template"):
        summary.chat_format = chat_template.reduce_files(checkpoint.files)

    with progress.stage("trace program"):
        parsed = trace_program(checkpoint.config, quant)
        lower.preflight(parsed, target)
    summary.parameters = sum(int(np.prod(shape)) for _, shape in parsed.parameters.values())

    tensors = CheckpointTensors(checkpoint, quant)
    if summary.parameters <= _DYGRAPH_LIMIT:
        with progress.stage(f"build {quant} dygraph"):
            tensors = DygraphTensors(build_decoder(tensors), tensors.errors)

    digest: list[str] = []

    def bundle(model_digest: str) -> dict[str, bytes]:
        digest.append(model_digest)
        manifest = build_manifest(checkpoint, summary, model_digest)
        return {**checkpoint.files, MANIFEST: to_json(manifest)}

    if opt is None:
        program = lower.lower_program(parsed, place)
        _write(out_path, program, OPT_VERSION, parsed, tensors.array, bundle, progress)
    else:
        with tempfile.TemporaryDirectory(prefix=".edge-kit-export-", dir=out_path.parent) as folder:
            optimized = _optimize(opt, Path(folder), parsed, tensors, place, progress)
            with NbFile(optimized) as file:
                _check_optimized(file, parsed)
                _write(out_path, file.program, file.opt_version, parsed, file.array, bundle, progress)

    summary.errors = tensors.errors
    _finish(summary, out_path, digest[0], quant)
    summary.seconds = progress.seconds
    return summary


def _writable(out: str) -> Path:
    """The path `out`; UsageError, before any work, if no file can be written there."""
    path = Path(out)
    try:
        if path.is_dir() or not path.parent.is_dir():
            raise UsageError(f"--out {out}: expected a file name in an existing folder")
        if path.exists() and not path.is_file():  # renaming over it would replace the device itself
            raise UsageError(f"--out {out}: is a device or a pipe, expected a file name")
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", suffix=".partial"):
            return path
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written: {error.strerror}") from None


def _optimize(opt: str, folder: Path, parsed, tensors, place: str, progress: Progress) -> Path:
    model, params = folder / "model.pdmodel", folder / "model.pdiparams"
    model.write_bytes(parsed.serialize())
    with progress.stage("write Paddle parameters", _total_bytes(parsed)) as advance:
        paddlelite.write_params(params, parsed, tensors, advance)
    with progress.stage(f"paddle_lite_opt for {place}"):
        return paddlelite.run_opt(opt, folder, model, params, place)


def _check_optimized(file: NbFile, parsed) -> None:
    """opt must have kept every tensor as it was: name, type and shape."""
    for name, (dtype, shape) in parsed.parameters.items():
        found = file.tensors.get(name)
        if found is None or (found.dtype, tuple(found.shape)) != (dtype, shape):
            what = "is missing" if found is None else f"is {found.dtype} {list(found.shape)}"
            raise EdgeKitError(
                f"paddle_lite_opt changed the model: tensor {name} {what}, expected {dtype} {list(shape)}; "
                "use --optimizer builtin"
            )


def _write(out: Path, program: Program, opt_version: str, parsed, array, bundle, progress: Progress) -> None:
    """Writes the tensors in the order of their use in the program, so that decoding reads front to back."""
    passes.share_weight_scratch(program)
    with progress.stage("write .nb", _total_bytes(parsed)) as advance:
        with NbWriter(out, program, opt_version, bundle) as writer:
            for name in parsed.parameters_in_order_of_use():
                dtype, shape = parsed.parameters[name]
                data = array(name)
                if dtype == "float32" and not np.isfinite(data).all():
                    raise UnsupportedError(
                        f"tensor {name} holds NaN or infinite values; the checkpoint is damaged"
                    )
                writer.add(name, dtype, shape, data)
                advance(data.nbytes)


def _total_bytes(parsed) -> int:
    return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for dtype, shape in parsed.parameters.values())


def _finish(summary: Summary, out: Path, digest: str, quant: str) -> None:
    """Post-conditions of the whole: the file is there, opens, and its weights are int8."""
    with NbFile(out) as file:
        sizes = {"int8": 0, "other": 0}
        for tensor in file.tensors.values():
            sizes["int8" if tensor.dtype == "int8" else "other"] += tensor.nbytes
    summary.file_bytes = out.stat().st_size
    summary.model_digest = digest
    summary.int8_share = sizes["int8"] / sum(sizes.values())
    if summary.errors:
        summary.largest_error_tensor = max(summary.errors, key=summary.errors.get)
        summary.largest_error = summary.errors[summary.largest_error_tensor]
    if quant == "int8" and summary.parameters >= _INT8_SHARE_FROM and summary.int8_share < _INT8_SHARE:
        summary.warnings.append(
            f"only {summary.int8_share:.1%} of the parameter bytes are int8, "
            f"expected at least {_INT8_SHARE:.0%}"
        )
    summary.peak_rss_bytes = machine.peak_rss()
