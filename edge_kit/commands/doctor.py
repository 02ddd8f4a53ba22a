"""`edge-kit doctor`: what this machine can do, and what it lacks."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform

import edge_kit
from lite_runtime.errors import EdgeKitError, UnsupportedError

HELP = "show the machine, the chosen kernel, versions, and what is missing"

_RUN_PACKAGES = ("numpy", "tokenizers", "jinja2")
_MEASURED_BYTES = 1 << 30


def add_arguments(parser) -> None:
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="a .nb file: loads it and measures its read bandwidth"
    )


def run(args) -> int:
    from edge_kit import targets
    from lite_runtime import device, machine

    _line("edge-kit", f"{edge_kit.__version__}, Python {platform.python_version()}, {platform.platform()}")
    _line(
        "processor",
        f"{machine.cpu_model()}, {machine.usable_cores()} of {os.cpu_count()} logical cores usable",
    )
    total, available = machine.total_memory(), machine.available_memory()
    _line("memory", f"{_gigabytes(available)} available of {_gigabytes(total)}")
    _target_line(targets)
    for finding in device.findings():
        _line(finding.label, finding.text)
        if finding.advice:
            _line("", f"to change: {finding.advice}")
    healthy = _native_lines()
    if healthy:
        _bandwidth_line(available)
    if args.file and healthy:
        _file_lines(args.file)
    missing = [name for name in _RUN_PACKAGES if _version(name) is None]
    _line("packages", ", ".join(f"{name} {_version(name) or 'MISSING'}" for name in _RUN_PACKAGES))
    if missing:
        _line("", f"to run models: pip install {' '.join(missing)}")
    _export_lines()
    return 0 if healthy and not missing else 1


def _target_line(targets) -> None:
    try:
        target = targets.get(targets.default())
    except UnsupportedError as error:
        _line("target", str(error))
    else:
        _line("target", f"{target.name}: {target.description}")


def _native_lines() -> bool:
    from lite_runtime import _native

    try:
        library = _native.library()
        names = _native.available_isas()
    except EdgeKitError as error:
        _line("native", f"MISSING: {error}")
        return False
    _line(
        "native", f"{_native.library_path()} {library.ek_version().decode()}, ABI {library.ek_abi_version()}"
    )
    wanted = os.environ.get("EDGE_KIT_ISA")
    _line("kernels", f"{', '.join(names)} (best first); chosen: {wanted if wanted in names else names[0]}")
    if wanted and wanted not in names:
        _line("", f"EDGE_KIT_ISA={wanted} is none of these")
    return True


def _bandwidth_line(available) -> None:
    import numpy as np

    from lite_runtime import _native

    size = min(_MEASURED_BYTES, (available or _MEASURED_BYTES) // 4)
    memory = np.ones(size, np.uint8)
    result = ctypes.c_double()
    _native.check(_native.library().ek_read_bandwidth(memory.ctypes.data, size, 0, ctypes.byref(result)))
    _line(
        "bandwidth", f"{result.value / 1e9:.2f} GB/s read from {_gigabytes(size)}, with the default threads"
    )


def _file_lines(path: str) -> None:
    import lite_runtime

    with lite_runtime.load(path) as model:
        info = model.info
        _line(
            "file",
            f"{path}: {info.file_bytes / 1e6:.1f} MB, {info.n_layers} layers, vocabulary {info.n_vocab}",
        )
        _line(
            "",
            f"written by opt {info.opt_version}, kit {model.manifest.get('kit_version', 'unknown')}, "
            f"for target {model.manifest.get('target', 'unknown')}",
        )
        _line("", f"kernel {info.isa}, {info.n_threads} threads by default, context {info.n_ctx}")
        bandwidth = model.read_bandwidth()
        ceiling = bandwidth / info.parameter_bytes_per_token
        _line("bandwidth", f"{bandwidth / 1e9:.2f} GB/s from the mapped file: at most {ceiling:.1f} tokens/s")


def _export_lines() -> None:
    from edge_kit.export import paddlelite, requirements

    packages = requirements.MODULES.values()
    _line("export", ", ".join(f"{name} {_version(name) or 'MISSING'}" for name in packages))
    if requirements.missing_distributions():
        _line("", "to export models: pip install 'edge-kit[export]'")
    _line("", f"paddle_lite_opt {paddlelite.find_opt() or 'not found: the built-in writer is used'}")
    python = os.environ.get("EDGE_KIT_STOCK_PYTHON")
    _line(
        "", f"stock Paddle Lite for 'verify --against stock': {python or 'EDGE_KIT_STOCK_PYTHON is not set'}"
    )


def _version(package: str):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gigabytes(amount) -> str:
    return "unknown" if amount is None else f"{amount / 1e9:.1f} GB"


def _line(label: str, text: str) -> None:
    print(f"{label:10} {text}")
