"""Servers that a benchmark starts on free ports of this machine: this kit's, and llama.cpp's own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lite_runtime.errors import EdgeKitError

from .comparison import environments
from .engines import base
from .load_client import RequestError, Server

ROOT = Path(__file__).resolve().parent.parent
_READY = ("ready", "ok")  # as this kit says, and llama.cpp
_START_SECONDS = 300.0
_END_SECONDS = 30.0
_POLL = 0.1  # seconds
# llama.cpp would fetch its web page while it is built.
_WITHOUT_PAGE = ("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF")
_LLAMA_SERVER = Path("build", "bin", "llama-server")


def edge_kit(model, threads: int, n_ctx: int, parallel: int) -> list:
    """The command of `edge-kit serve`, without its port."""
    command = [sys.executable, "-m", "edge_kit", "serve", os.path.abspath(model), "--threads", threads]
    return [*command, "--n-ctx", n_ctx, "--max-batch", parallel]


def llama(program, gguf, threads: int, n_ctx: int, parallel: int) -> list:
    """The command of llama-server, without its port. n_ctx: of each request; the program shares out its own.

    Continuous batching, flash attention and a cache in f16 are its defaults.
    """
    command = [program, "--model", gguf, "--threads", threads, "--threads-batch", threads]
    return [*command, "--ctx-size", n_ctx * parallel, "--parallel", parallel, "--offline"]


def llama_program(work: Path) -> Path:
    """llama-server in the work folder; EngineError with the command that makes it."""
    program = environments.folder_of(base.find("llama-cpp"), work) / _LLAMA_SERVER
    if not program.is_file():
        raise base.EngineError(f"not built: python benchmarks/serving.py --install --work {work}")
    return program


def install_llama(work: Path) -> Path:
    """Builds llama-server from the source distribution that peers.py installs llama.cpp from, by the same
    flags for this very CPU. EngineError if it cannot be built."""
    engine = base.find("llama-cpp")
    environments.install(engine, work)
    folder = environments.folder_of(engine, work)
    cmake = Path(environments.python_of(engine, work)).parent / "cmake"
    build, log = folder / _LLAMA_SERVER.parts[0], folder / "install.log"
    base.run_tool([cmake, *_WITHOUT_PAGE, build], log)
    jobs = str(os.cpu_count() or 1)
    base.run_tool([cmake, "--build", build, "--target", "llama-server", "--parallel", jobs], log)
    return llama_program(work)


@contextlib.contextmanager
def serving(command: list):
    """(url, process id) of the command's server, once it is ready; it is ended behind the block.

    EdgeKitError, with the last line that it wrote, if it ends or does not become ready.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [*map(str, command), "--host", "127.0.0.1", "--port", str(port)]
    with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process:
            try:
                _wait(process, url, log.name)
                yield url, process.pid
            finally:
                process.terminate()
                try:
                    process.wait(_END_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()


def _wait(process, url: str, log: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    server = Server(url, timeout=10)
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(RequestError, ValueError, KeyError):
            if json.loads(server.get("/health"))["status"] in _READY:
                return
        time.sleep(_POLL)
    lines = Path(log).read_text(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    state = f"ended with {process.returncode}" if process.returncode is not None else "is not ready"
    raise EdgeKitError(f"{Path(process.args[0]).name} {state}: {last[-300:]}")
