"""What an engine is to the benchmark: how it is installed, fed and timed.

The host side runs in the benchmark's Python, the worker side in the engine's own environment, which has
neither this kit's dependencies nor the other engines. So a module in this folder imports the standard library
alone at its top, and its engine inside the methods of the worker side.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

_BYTES_PER_TOKEN = "bytes_per_token"  # beside a converted model
CONTEXT = 2048  # tokens that a loaded engine must be able to hold
CONVERT_SECONDS = 3600.0  # the longest that one step of a conversion or an installation may take


class EngineError(Exception):
    """The engine cannot do what was asked; the message is for the reader of the table."""


class Engine:
    """One engine. Subclasses set the fields and fill in the methods; one class per module.

    name: as written after `--engines`; the module has the same name with `_` for `-`.
    quants: what it can be timed at; the first is what `--engines NAME` means, the others need `NAME:QUANT`
        or `NAME:all`.
    python: "3.11" for the version that its environment is made with, None to run in the benchmark's own.
    requirements: what pip installs there, pinned.
    modules: what the worker imports before the clock of `load` starts.
    """

    name = ""
    quants: tuple = ()
    python = "3.11"
    requirements: tuple = ()
    modules: tuple = ()

    # Host side.

    def stamp(self) -> list:
        """What its environment is made of: where that changes, it has to be made and checked anew."""
        return list(self.requirements)

    def bits(self, quant: str) -> int:
        """Bits per weight: how near to fp32 the answers must be."""
        return {"fp32": 32, "bf16": 16, "int8": 8, "q8_0": 8, "int4": 4, "q4_0": 4}[quant]

    def exact(self, quant: str) -> str | None:
        """What `load` takes as `quant` to compute the same files in fp32, if the engine can.

        Tells a wrong conversion from an engine that rounds activations more roughly than others.
        """
        return None

    def install(self, python: str, folder: Path) -> None:
        """What pip cannot do. `python` is the new environment's interpreter, `folder` the engine's own."""

    def convert(self, hf_folder: Path, out_folder: Path, quant: str, python: str) -> None:
        """Makes the engine's own model of a bf16 Hugging Face folder in the new, empty `out_folder`.

        Runs the engine's own converter in its environment, see `run_tool`. What is left in `out_folder` is
        kept as long as the benchmark needs the model, so temporary files have to be removed.
        """
        raise NotImplementedError

    def environment(self, threads: int) -> dict:
        """Environment variables that the worker is started with, beside the caller's."""
        return {}

    # Worker side.

    def load(self, folder: str, quant: str, threads: int) -> None:
        """Opens the converted model; it has to hold a context of CONTEXT tokens."""
        raise NotImplementedError

    def run(self, ids: list, n_new: int) -> list:
        """Seconds of each of `n_new` tokens after `ids`, in a fresh context: greedy, end-of-text ignored.

        [0] is the time from the call to the first token, with the whole prompt; the others that of each
        later token.
        """
        raise NotImplementedError

    def top1(self, ids: list) -> list:
        """The most likely next id after each of `ids`, in a fresh context, whatever the ids are."""
        raise NotImplementedError

    def versions(self) -> dict:
        """Name → version of what computes, and what is known of the instructions it uses."""
        return {name: package_version(name) for name in self.modules}

    def bytes_per_token(self) -> int | None:
        """Bytes of weights read to decode one token, if known."""
        return None


def find(name: str) -> Engine:
    """The engine of that name; EngineError if there is none."""
    if name not in names():
        raise EngineError(f"engine '{name}', expected one of {', '.join(names())}")
    module = importlib.import_module(f"{__package__}.{name.replace('-', '_')}")
    for _, kind in inspect.getmembers(module, inspect.isclass):
        if issubclass(kind, Engine) and kind.__module__ == module.__name__ and kind.name == name:
            return kind()
    raise EngineError(f"{module.__file__}: no subclass of Engine named '{name}'")


def names() -> list:
    """All engines that have a module here."""
    own = {"__init__", "base", "own_goals", "worker"}
    found = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted(stem.replace("_", "-") for stem in found if stem not in own)


def run_tool(command: list, log: Path, timeout: float = CONVERT_SECONDS, **options) -> None:
    """Runs a converter or installer with its output in `log`; EngineError with the last lines if it fails.

    options: of subprocess.run, as `cwd` and `env`.
    """
    command = [str(part) for part in command]
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=timeout, **options
            )
            problem = f"exit code {done.returncode}" if done.returncode else None
        except subprocess.TimeoutExpired:
            problem = f"not done after {timeout:.0f} s"
        except OSError as error:
            problem = str(error)
    if problem:
        lines = log.read_text(errors="replace").splitlines()
        tail = " | ".join(line.strip()[-200:] for line in lines[-3:] if line.strip())
        raise EngineError(f"{' '.join(command[:4])} …: {problem}; {log} ends with: {tail}")


def export_nb(hf_folder: Path, path: Path, quant: str, target: str, log: Path) -> None:
    """Makes this kit's `.nb` by the built-in writer, in the benchmark's own Python."""
    command = [sys.executable, "-m", "edge_kit", "export", "--model", hf_folder.resolve(), "--target", target]
    command += ["--quant", quant, "--optimizer", "builtin", "--out", path.resolve()]
    run_tool(command, log, cwd=Path(__file__).resolve().parent.parent.parent)


def link_folder(hf_folder: Path, out_folder: Path) -> None:
    """Hard links, for an engine that reads the folder as it is: they take no room, and outlive it."""
    shutil.copytree(hf_folder, out_folder, copy_function=os.link, dirs_exist_ok=True)


def thread_variables(threads: int) -> dict:
    """What OpenMP and MKL take their number of threads from."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))


def keep_bytes_per_token(out_folder: Path, value: int) -> None:
    """For `kept_bytes_per_token`: what only the conversion knows."""
    (out_folder / _BYTES_PER_TOKEN).write_text(str(value))


def kept_bytes_per_token(folder) -> int:
    return int((Path(folder) / _BYTES_PER_TOKEN).read_text())


def read_config(folder) -> dict:
    """config.json of a Hugging Face folder."""
    return json.loads((Path(folder) / "config.json").read_text())


def package_version(name: str) -> str:
    """The version of an installed package, found by the name of its module."""
    from importlib import metadata

    found = metadata.packages_distributions().get(name) if sys.version_info >= (3, 10) else None
    try:
        return metadata.version(found[0] if found else name)
    except metadata.PackageNotFoundError:
        return "unknown"
