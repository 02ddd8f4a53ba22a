"""A program in a terminal: keys go in, and what stands on the screen is read."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from pathlib import Path

import pyte

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 60  # a safeguard, no measurement


class _Screen(pyte.HistoryScreen):
    """Answers the program's questions, such as where the cursor is."""

    def __init__(self, columns: int, rows: int, answer):
        self.write_process_input = answer
        super().__init__(columns, rows, history=2000, ratio=0.5)

    def draw(self, data: str) -> None:
        """pyte drops what follows a zero-width joiner."""
        super().draw(data.replace("\u200d", ""))


class PseudoTerminal:
    """with PseudoTerminal(command) as terminal: …; the program is killed at the end, if it still runs."""

    def __init__(self, command: list, columns: int = 80, rows: int = 24, **environment):
        self.raw = b""
        self._screen = _Screen(columns, rows, self.type)
        self._stream = pyte.ByteStream(self._screen)
        self._pid, self._descriptor = pty.fork()
        if self._pid == 0:
            try:
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
                os.chdir(ROOT)
                os.execve(command[0], command, {**os.environ, "TERM": "xterm-256color", **environment})
            finally:
                os._exit(127)

    def __enter__(self) -> PseudoTerminal:
        return self

    def __exit__(self, *_exception) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._descriptor)

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def paste(self, text: str) -> None:
        """As terminals do it: in brackets, with carriage returns."""
        self.type("\x1b[200~" + text.replace("\n", "\r") + "\x1b[201~")

    def text(self) -> str:
        """All lines, those above the screen too, without blanks at their ends."""
        columns = range(self._screen.columns)
        above = ["".join(line[x].data for x in columns) for line in self._screen.history.top]
        lines = [line.rstrip() for line in [*above, *self._screen.display]]
        return "\n".join(lines).rstrip("\n")

    def wait_for(self, what: str, times: int = 1) -> str:
        """Reads until `what` stands there so often; gives all text."""
        deadline = time.monotonic() + SECONDS
        while self.text().count(what) < times:
            assert time.monotonic() < deadline, f"no {what!r} ({times}) in:\n{self.text()}"
            if not self.read(1.0):
                continue
        return self.text()

    def end(self) -> int:
        """Reads until the program ends; gives its exit status, minus the signal's number if one ended it."""
        deadline = time.monotonic() + SECONDS
        while True:
            self.read(0.1)
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._pid = 0
                while self.read(0.0):
                    pass
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, f"it goes on:\n{self.text()}"

    def signal(self, number: int) -> None:
        os.kill(self._pid, number)

    def flags(self) -> int:
        """The terminal's local modes (termios.ECHO, …)."""
        return termios.tcgetattr(self._descriptor)[3]

    def read(self, seconds: float = 0.1) -> bool:
        """Takes in what the program wrote; waits so long for it, and says whether there was something."""
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._descriptor, 1 << 16)
        except OSError:  # the program has ended
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)
