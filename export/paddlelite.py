"""The stock optimizer: runs `paddle_lite_opt` on the traced program and its tensors."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

from lite_runtime.errors import EdgeKitError, UnsupportedError

_TIMEOUT_SECONDS = 1800


def find_opt() -> str | None:
    """The `paddle_lite_opt` to use: beside EDGE_KIT_STOCK_PYTHON, beside this Python, or on PATH."""
    pythons = [os.environ.get("EDGE_KIT_STOCK_PYTHON"), sys.executable]
    beside = [Path(python).parent / "paddle_lite_opt" for python in pythons if python]
    return next((str(path) for path in beside if path.exists()), None) or shutil.which("paddle_lite_opt")


def write_params(path: Path, parsed, tensors, progress) -> None:
    """Paddle's combined parameter file: all tensors sorted by name, one after the other.

    Each is u32 version = 0, u64 LoD levels = 0, u32 tensor version = 0, i32 length of the TensorDesc message,
    that message, the data (Paddle's SerializeToStream in paddle/fluid/framework/lod_tensor.cc).
    """
    described = {
        var.name: var.type.dense_tensor.tensor for var in parsed.vars if var.name in parsed.parameters
    }
    with open(path, "wb") as file:
        for name in sorted(described):
            message = described[name].SerializeToString()
            array = np.ascontiguousarray(tensors.array(name))
            file.write(struct.pack("<IQIi", 0, 0, 0, len(message)) + message)
            file.write(array.data)
            progress(array.nbytes)


def run_opt(opt: str, folder: Path, model: Path, params: Path, place: str) -> Path:
    """Optimizes into `folder`; gives the path of the `.nb`, or EdgeKitError with opt's own words."""
    out = folder / "optimized"
    command = [
        opt,
        f"--model_file={model}",
        f"--param_file={params}",
        f"--optimize_out={out}",
        "--optimize_out_type=naive_buffer",
        f"--valid_targets={place}",
    ]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            timeout=_TIMEOUT_SECONDS,
        )  # fmt: skip
    except OSError as error:
        raise UnsupportedError(f"{opt} cannot be run: {error.strerror}; use --optimizer builtin") from None
    except subprocess.TimeoutExpired:
        raise EdgeKitError(
            f"{opt} did not end within {_TIMEOUT_SECONDS} s; use --optimizer builtin"
        ) from None
    result = folder / "optimized.nb"
    # opt ends with 0 after some failures: only the file itself tells.
    if done.returncode != 0 or not result.exists():
        words = "\n".join(done.stdout.strip().splitlines()[-8:])
        raise EdgeKitError(
            f"{opt} ended with {done.returncode} and wrote no file. Its last words:\n{words}\n"
            "Use --optimizer builtin, which needs no paddle_lite_opt."
        )
    return result
