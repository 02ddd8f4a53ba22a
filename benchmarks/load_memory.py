"""A server's memory while it is under load."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from pathlib import Path

from lite_runtime.errors import EdgeKitError, UsageError

from .load_figures import slope

_PERIOD = 0.5  # seconds between two samples
_WARM_UP = 1 / 3  # of the time: buffers grow to what the load needs
_METRIC = re.compile(r"^process_resident_memory_bytes (\S+)$", re.MULTILINE)


def resident(pid: int) -> dict:
    """{"resident": bytes, "private": of them not of files} of a process; UsageError if it cannot be seen.

    The pages of a mapped model come in as they are first read; what leaks is private.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {"resident": _psutil_resident(pid)}
    kilobytes = dict(re.findall(r"^(\w+):\s+(\d+) kB$", status, re.MULTILINE))
    if "VmRSS" not in kilobytes:
        raise UsageError(f"process {pid} has ended")
    found = {"resident": 1024 * int(kilobytes["VmRSS"])}
    if "RssAnon" in kilobytes:
        found["private"] = 1024 * int(kilobytes["RssAnon"])
    return found


def _psutil_resident(pid: int) -> int:
    try:
        import psutil

        return psutil.Process(pid).memory_info().rss
    except ImportError:
        raise UsageError("without /proc, --pid needs psutil: pip install psutil") from None
    except psutil.Error as error:
        raise UsageError(f"--pid {pid}: {error}") from None


class Memory:
    """Samples of a server's memory over the requests that it has answered."""

    def __init__(self, server, pid: int | None):
        self._server, self._pid = server, pid
        self._samples = []  # (seconds, requests, {"resident", …})
        self._stop = threading.Event()
        self._read()  # an error that the user can mend comes before the load

    def _read(self) -> dict:
        if self._pid is not None:
            return resident(self._pid)
        found = _METRIC.search(self._server.get("/metrics"))
        if found is None:
            raise UsageError("the server's /metrics do not tell its memory: give its --pid")
        return {"resident": int(float(found.group(1)))}

    @contextlib.contextmanager
    def watch(self, count):
        """count: () -> requests so far. A server that ends ends the watching, no more."""
        thread = threading.Thread(target=self._watch, args=(count,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _watch(self, count) -> None:
        began = time.perf_counter()
        while not self._stop.wait(_PERIOD):
            try:
                self._samples.append((time.perf_counter() - began, count(), self._read()))
            except EdgeKitError:
                return

    def report(self) -> dict:
        """Slopes in MB per 1,000 requests, None where there is too little to tell."""
        last = self._samples[-1][0] if self._samples else 0.0
        kept = [sample for sample in self._samples if sample[0] >= _WARM_UP * last]
        found = {"samples": len(kept), "source": "/metrics" if self._pid is None else f"process {self._pid}"}
        for kind in self._samples[-1][2] if self._samples else ():
            points = [(requests, values[kind]) for _, requests, values in kept]
            per_request = slope(points)
            found[f"{kind}_mb"] = points[-1][1] / 1e6
            found[f"{kind}_mb_per_1000"] = None if per_request is None else per_request * 1e3 / 1e6
        found["requests"] = kept[-1][1] - kept[0][1] if kept else 0
        return found


def is_steady(found: dict, most: float) -> bool:
    """Whether the slope of what is private, or else resident, is below `most` MB per 1,000 requests."""
    slopes = (found.get(f"{kind}_mb_per_1000") for kind in ("private", "resident"))
    per_1000 = next((value for value in slopes if value is not None), None)
    return per_1000 is not None and per_1000 < most


def line(found: dict) -> str:
    """A sentence of a report."""
    parts = []
    for kind in ("resident", "private"):
        per_1000 = found.get(f"{kind}_mb_per_1000")
        if per_1000 is not None:
            parts.append(f"{kind} {found[f'{kind}_mb']:.1f} MB, {per_1000:+.2f} MB per 1,000 requests")
    told = "; ".join(parts) or "too little to tell a slope"
    return f"Memory ({found['source']}) over the last {found['requests']} requests: {told}."
