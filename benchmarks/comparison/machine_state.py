"""What the machine gives while engines run: read bandwidth, int8 peak, and what others take of it."""

from __future__ import annotations

import bisect
import ctypes
import os
import threading
import time
from pathlib import Path

import numpy as np

import lite_runtime
from edge_kit.speed import DISTURBED_SHARE
from lite_runtime import _native, machine

_PERIOD = 0.1  # seconds between two looks at /proc
_SETTLE = 0.3  # seconds for an idle engine's threads to stop spinning


class Ceilings:
    """The best that the machine can do right now.

    n_bytes: what is read to measure the bandwidth: as much as a model's weights, so that a cache that holds
        the one holds the other.
    """

    def __init__(self, n_bytes: int):
        self._data = np.ones(max(n_bytes, 1 << 20), np.uint8)

    def read_bandwidth(self, threads: int) -> float:
        """Bytes per second, after a short pause."""
        time.sleep(_SETTLE)
        result = ctypes.c_double()
        data = self._data
        _native.check(
            _native.library().ek_read_bandwidth(data.ctypes.data, data.size, threads, ctypes.byref(result))
        )
        return result.value

    def int8_peak_gops(self, threads: int) -> dict:
        """Of each kernel path of this CPU; a multiply-add is two operations."""
        isas = lite_runtime.available_isas()
        return {isa: 2 * machine.multiply_peak(threads, isa) / 1e9 for isa in isas}


def leave_page_cache(folder: Path) -> None:
    """As after a boot: files just written are cached in small pages, files read in large ones."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class ForeignLoad:
    """Watches /proc during a measurement; tells of any stretch whether others took processor time in it.

    pid: the process that is measured. A context manager; knows nothing where there is no /proc.
    """

    def __init__(self, pid: int):
        self._pid = pid
        self._samples = []  # (time.perf_counter, foreign seconds since boot)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while True:
            foreign = machine.foreign_cpu_seconds(self._pid)
            if foreign is not None:
                self._samples.append((time.perf_counter(), foreign))
            if self._stop.wait(_PERIOD):
                return

    def share(self, began: float, ended: float) -> float:
        """Of all cores' time from `began` to `ended` (time.perf_counter), what others took."""
        times = [when for when, _ in self._samples]
        first = max(bisect.bisect_right(times, began) - 1, 0)
        last = min(bisect.bisect_left(times, ended), len(times) - 1)
        if last <= first:
            return 0.0
        (start, before), (end, after) = self._samples[first], self._samples[last]
        return machine.share_of_cores(after - before, end - start)

    def disturbed(self, began: float, ended: float) -> bool:
        return self.share(began, ended) > DISTURBED_SHARE

    def __enter__(self) -> ForeignLoad:
        self._thread.start()
        return self

    def __exit__(self, *_exception) -> None:
        self._stop.set()
        self._thread.join(5)
