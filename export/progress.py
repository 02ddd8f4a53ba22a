"""Progress of an export, on standard error: one line a stage, with a percentage where it is known."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager


class Progress:
    """`seconds` holds what each stage took. A quiet one only keeps the times."""

    def __init__(self, quiet: bool = False):
        self.seconds: dict[str, float] = {}
        self._stream = sys.stderr
        self._quiet = quiet
        self._live = not quiet and self._stream.isatty()

    @contextmanager
    def stage(self, name: str, total_bytes: int = 0):
        """Runs a stage; yields `advance(bytes)`."""
        start = time.monotonic()
        done = 0
        shown = -1

        def advance(nbytes: int) -> None:
            nonlocal done, shown
            done += nbytes
            percent = 100 * done // max(total_bytes, 1)
            if self._live and percent != shown:
                shown = percent
                self._stream.write(f"\r{name} … {percent} %")
                self._stream.flush()

        if self._live:
            self._stream.write(f"{name} …")
            self._stream.flush()
        yield advance
        self.seconds[name] = round(time.monotonic() - start, 3)
        if not self._quiet:
            line = f"{name}: {self.seconds[name]:.1f} s"
            self._stream.write(f"\r{line}\x1b[K\n" if self._live else f"{line}\n")
            self._stream.flush()
