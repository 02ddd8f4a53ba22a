"""Stock Paddle Lite as a judge: a `.nb` file run by a worker process in a Python that has paddlelite.

paddlelite 2.13rc0 exists for Python up to 3.10 and reads garbage from NumPy 2, so it lives in a Python of its
own, named by the environment variable EDGE_KIT_STOCK_PYTHON. An arm file is judged by a copy whose kernel
picks are x86's; nothing else in it changes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading

import numpy as np

from edge_kit import stock_worker
from edge_kit.interface import Interface, causal_mask, checked_ids
from edge_kit.nb.format import Target
from edge_kit.nb.reader import NbFile
from edge_kit.nb.rewrite import retarget
from lite_runtime.errors import EdgeKitError, UnsupportedError, UsageError

VARIABLE = "EDGE_KIT_STOCK_PYTHON"
RECIPE = (
    "make one with: python3.10 -m venv stock && stock/bin/pip install paddlelite==2.13rc0 'numpy<2', "
    f"then set {VARIABLE}=stock/bin/python (Linux, macOS or Windows on x86-64)"
)
LAST_LINES = 8  # of a dead worker's output that its error shows


class StockError(EdgeKitError):
    """The worker died or did not answer in time."""


def stock_python() -> str:
    """The interpreter named by EDGE_KIT_STOCK_PYTHON; UnsupportedError if there is none."""
    name = os.environ.get(VARIABLE, "")
    if not name:
        raise UnsupportedError(
            f"stock Paddle Lite needs a Python of its own, and {VARIABLE} is not set; {RECIPE}"
        )
    found = shutil.which(name)
    if found is None:
        raise UnsupportedError(f"{VARIABLE} is {name}, which is no program that can be run; {RECIPE}")
    return found


def is_arm(file: NbFile) -> bool:
    """Whether the kernels picked in the program are arm's."""
    picks = [op.kernel.split("/") for op in file.program.ops]
    return any(len(pick) == 5 and pick[2] == str(int(Target.ARM)) for pick in picks)


class StockModel:
    """A `.nb` file open in stock Paddle Lite. `timeout` in seconds bounds the opening and each call.

    Use it in a `with` block, or call `close()`.
    """

    def __init__(self, path, timeout: float = 600.0):
        self.path = os.fspath(path)
        self._timeout = timeout
        self._scratch = tempfile.TemporaryDirectory(prefix="edge-kit-stock-")
        self._process = None
        self._n_sessions = 0
        try:
            python = stock_python()
            with NbFile(self.path) as file:
                self.interface = Interface(file)
                judged = os.path.join(self._scratch.name, "x86.nb") if is_arm(file) else self.path
            if judged != self.path:
                retarget(self.path, judged, "x86")
            self._start(python, judged)
        except BaseException:
            self.close()
            raise

    def _start(self, python: str, judged: str) -> None:
        self._log = open(os.path.join(self._scratch.name, "log"), "w+b")
        try:
            # -I: nothing of this process's PYTHONPATH or current folder reaches the worker.
            self._process = subprocess.Popen(
                [python, "-I", stock_worker.__file__, judged],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
            )
        except OSError as error:
            raise UnsupportedError(f"{python} does not start: {error.strerror}; {RECIPE}") from None
        line = self._receive(self._process.stdout.readline).decode("utf-8", "replace")
        word, _, reason = line.partition(" ")
        if word == "unfit":
            raise UnsupportedError(f"{reason.strip()}; {RECIPE}")
        if word != "ready\n":
            raise self._dead("opening the file")

    def _receive(self, read):
        """What `read()` gives; StockError if that takes longer than the timeout."""
        late = threading.Event()

        def stop():
            late.set()
            self._process.kill()

        timer = threading.Timer(self._timeout, stop)
        timer.start()
        try:
            answer = read()
        finally:
            timer.cancel()
        if late.is_set():
            raise StockError(
                f"{self.path}: stock Paddle Lite gave no answer in {self._timeout:g} s; "
                "allow more time or give fewer tokens"
            )
        return answer

    def _dead(self, doing: str) -> StockError:
        self._process.kill()
        status = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()[-LAST_LINES:]
        said = "\n  ".join(lines) if lines else "(nothing)"
        return StockError(
            f"{self.path}: the stock worker ended with status {status} while {doing}; "
            f"its last output:\n  {said}"
        )

    def request(self, **arrays) -> dict:
        """Sends one message of stock_worker.py and returns the answer."""
        doing = f"running {arrays['command']}"
        if self._process is None:
            raise UsageError(f"{self.path}: this stock model is closed")
        try:
            stock_worker.write_message(self._process.stdin, **arrays)
        except (BrokenPipeError, ValueError):
            raise self._dead(doing) from None
        answer = self._receive(lambda: stock_worker.read_message(self._process.stdout))
        if answer is None:
            raise self._dead(doing)
        return answer

    def session(self) -> StockSession:
        """A new, empty one."""
        self._n_sessions += 1
        return StockSession(self, self._n_sessions)

    def close(self) -> None:
        """Ends the worker."""
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass  # it was dead already
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._log.close()
        self._scratch.cleanup()

    def __enter__(self) -> StockModel:
        return self

    def __exit__(self, *error) -> None:
        self.close()


class StockSession:
    """The cache of one sequence, kept by the worker."""

    def __init__(self, model: StockModel, number: int):
        self._model, self._number = model, number
        self.length = 0

    def forward(self, ids) -> np.ndarray:
        """Appends `ids` [T]; returns their logits, fp32 [T, vocabulary]."""
        interface = self._model.interface
        ids = checked_ids(ids, interface.n_vocab)
        answer = self._model.request(
            command="forward",
            session=self._number,
            input_ids=ids,
            positions=np.arange(self.length, self.length + len(ids), dtype=np.int64),
            mask=causal_mask(self.length, len(ids)),
            cache_shapes=np.array(interface.cache_shapes, np.int64),
        )
        self.length += len(ids)
        return answer["logits"]

    def cut(self, n: int) -> None:
        """Keeps the first `n` tokens."""
        if not 0 <= n <= self.length:
            raise UsageError(f"cannot cut a session of {self.length} tokens to {n}")
        if n < self.length:
            self._model.request(command="cut", session=self._number, length=n)
            self.length = n

    def free(self) -> None:
        """Drops the cache; the session is empty again."""
        self._model.request(command="free", session=self._number)
        self.length = 0
