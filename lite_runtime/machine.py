"""What this machine says about its memory and its processor. None where it does not tell."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
import time
from pathlib import Path

from . import _native, device
from .errors import MemoryLimitError


def require_memory(needed: int, purpose: str) -> None:
    """Raises MemoryLimitError if `needed` bytes are more than the machine can give."""
    available = available_memory()
    if available is not None and needed > available:
        raise MemoryLimitError(
            f"{purpose} needs {needed / 1e9:.2f} GB of memory ({needed} bytes), available are "
            f"{available / 1e9:.2f} GB ({available} bytes): close other programs, use a smaller model, or a "
            "smaller n_ctx if you set one"
        )


def available_memory() -> int | None:
    """Bytes that a new process can use without swapping: page cache counts, a container's limit holds."""
    if sys.platform == "darwin":
        return _sysctl_int("hw.memsize")
    amounts = [device.sizes("/proc/meminfo").get("MemAvailable"), _cgroup_available()]
    return min((amount for amount in amounts if amount is not None), default=None)


def total_memory() -> int | None:
    """Bytes of memory in the machine."""
    if sys.platform == "darwin":
        return _sysctl_int("hw.memsize")
    return device.sizes("/proc/meminfo").get("MemTotal")


def rss() -> int | None:
    """Resident size of this process in bytes, mapped files included; None where the system does not tell."""
    return device.sizes("/proc/self/status").get("VmRSS")


def peak_rss() -> int:
    """Largest resident size of this process so far, in bytes."""
    # ru_maxrss would count what the parent held before exec.
    peak = device.sizes("/proc/self/status").get("VmHWM")
    if peak is not None:
        return peak
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def cpu_model() -> str:
    """The processor's name."""
    if sys.platform == "darwin":
        return _sysctl_string("machdep.cpu.brand_string") or platform.machine()
    fields = dict(
        (part.strip() for part in line.split(":", 1))
        for line in device.read("/proc/cpuinfo").splitlines()
        if ":" in line
    )
    return fields.get("model name") or device.board() or platform.processor() or platform.machine()


def usable_cores() -> int:
    """Logical processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def multiply_peak(n_threads=None, isa=None) -> float:
    """Int8 multiply-adds per second of kernel path `isa` on `n_threads` at most (None: the defaults).

    Takes some 50 ms; raises UsageError for a path that this CPU cannot run.
    """
    result = ctypes.c_double()
    name = None if isa is None else isa.encode()
    _native.check(_native.library().ek_multiply_peak(name, n_threads or 0, ctypes.byref(result)))
    return result.value


_UNSURE_TICKS = 2  # /proc/stat counts in ticks, and for each core may be a tick or two off


class CpuWatch:
    """What share of the machine's processor time others took since this was made."""

    def __init__(self):
        self._started, self._foreign = time.perf_counter(), foreign_cpu_seconds()

    def foreign_share(self) -> float | None:
        """Of all cores, taken by other processes or held back by the host; None where it cannot be told."""
        foreign = foreign_cpu_seconds()
        if foreign is None or self._foreign is None:
            return None
        return share_of_cores(foreign - self._foreign, time.perf_counter() - self._started)


def foreign_cpu_seconds(pid=None) -> float | None:
    """Since boot: busy and stolen time of all cores, without this process's and that of process `pid`.

    None where the system does not tell.
    """
    fields = device.read("/proc/stat").partition("\n")[0].split()
    own = device.read(f"/proc/{pid}/stat").rpartition(")")[2].split() if pid is not None else []
    if fields[:1] != ["cpu"] or len(fields) < 9 or (pid is not None and len(own) < 13):
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[1:9])
    ticks = user + nice + system + irq + softirq + steal - sum(map(int, own[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


def share_of_cores(cpu_seconds: float, seconds: float) -> float:
    """Processor time as a share of what all cores had in `seconds`, less what the counting leaves unsure."""
    cores = os.cpu_count() or 1
    unsure = _UNSURE_TICKS * cores / os.sysconf("SC_CLK_TCK")
    return max(0.0, cpu_seconds - unsure) / (cores * seconds)


def _cgroup_available() -> int | None:
    """What the tightest limit (cgroup 2) on the way from this process's group to the root leaves."""
    root = Path("/sys/fs/cgroup")
    groups = device.read("/proc/self/cgroup").splitlines()
    own = next((line[3:] for line in groups if line.startswith("0::")), "/")
    folder, left = root / own.lstrip("/"), []
    for group in [folder, *folder.parents]:
        limit, used = device.read(group / "memory.max").strip(), device.read(group / "memory.current").strip()
        if limit.isdigit() and used.isdigit():
            stat = (line.split() for line in device.read(group / "memory.stat").splitlines())
            file_pages = sum(int(value) for name, value in stat if name in ("inactive_file", "active_file"))
            left.append(int(limit) - int(used) + file_pages)
    return min(left, default=None)


def _sysctl(name: str, size: int) -> bytes | None:
    buffer, length = ctypes.create_string_buffer(size), ctypes.c_size_t(size)
    status = ctypes.CDLL(None).sysctlbyname(
        name.encode(), buffer, ctypes.byref(length), None, ctypes.c_size_t(0)
    )
    return buffer.raw[: length.value] if status == 0 else None


def _sysctl_int(name: str) -> int | None:
    value = _sysctl(name, 8)
    return int.from_bytes(value, sys.byteorder) if value else None


def _sysctl_string(name: str) -> str:
    value = _sysctl(name, 256)
    return value.rstrip(b"\0").decode("utf-8", "replace") if value else ""
