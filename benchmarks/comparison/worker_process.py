"""The host's end of a worker: one engine in a process of its own, and every wait bounded."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from pathlib import Path

from benchmarks.engines import worker
from benchmarks.engines.base import Engine, EngineError


class WorkerProcess:
    """An engine with one model and thread count, started but not loaded; a context manager.

    log: the file that the engine's own prints are appended to.
    """

    def __init__(self, engine: Engine, python: str, folder: Path, quant: str, threads: int, log: Path):
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [python, worker.__file__, engine.name, str(folder), quant, str(threads)]
        # Python's own variables are meant for the host's interpreter, not for the engine's.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        self.engine = engine.name
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**inherited, **engine.environment(threads)},
                start_new_session=True,  # so that what it starts ends with it
            )
        self.pid = self._process.pid
        self._answers = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def ask(self, timeout: float, do: str, **fields) -> dict:
        """The answer to one command; EngineError if the engine fails, ends or takes over `timeout` s."""
        try:
            self._process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            self.close()
            raise EngineError(f"{self.engine}: no answer to '{do}' within {timeout:.0f} s") from None
        except OSError:
            line = None
        if line is None:
            self.close()
            end = f"{self._end()}; its log ends with: {self._tail()}"
            raise EngineError(f"{self.engine}: ended at '{do}': {end}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{self.engine}: '{do}' failed: {answer['error']}")
        return answer

    def _end(self) -> str:
        code = self._process.returncode
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-3:]
        return " | ".join(line.strip() for line in lines if line.strip())[-500:] or "nothing"

    def close(self) -> None:
        """Ends the process and all that it started. May be called twice."""
        with contextlib.suppress(OSError):  # it has ended
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(10)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_exception) -> None:
        self.close()
