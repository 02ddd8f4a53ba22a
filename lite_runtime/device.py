"""What a device's system says about its clocks, its heat, its power supply and its swap.

Linux tells it in /sys and /proc, a Raspberry Pi's firmware by `vcgencmd`. `root` is the folder that those two
lie in. What a system does not tell is None.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_CPUS = "sys/devices/system/cpu"
_SET_GOVERNOR = f"echo performance | sudo tee /{_CPUS}/cpu*/cpufreq/scaling_governor"
# Drivers that choose the clock in hardware: there "powersave" is no fixed lowest clock.
_SELF_SCALING_DRIVERS = ("intel_pstate", "amd-pstate-epp")
_HOT_BOARD_C, _HOT_C = 80, 95  # a Raspberry Pi lowers its clock from 80 °C on, PCs bear more
_MUCH_SWAP = 64 << 20  # idle services alone may fill some megabytes

# Bits of vcgencmd's get_throttled, which say "now"; 16 bits higher each says "since boot".
_UNDER_VOLTAGE, _CAPPED, _THROTTLED, _SOFT_LIMIT = 1, 2, 4, 8
_THROTTLE_WORDS = {
    _UNDER_VOLTAGE: "under-voltage",
    _CAPPED: "clock capped",
    _THROTTLED: "throttled",
    _SOFT_LIMIT: "soft temperature limit",
}


@dataclass(frozen=True)
class Clocks:
    """Of the fastest cores; each number is None where it is not told."""

    governors: tuple  # names, each once
    drivers: tuple
    current_mhz: float | None
    limit_mhz: float | None  # the highest that is allowed at present
    hardware_mhz: float | None  # the highest that the hardware can do


@dataclass(frozen=True)
class Swap:
    """Sizes in bytes; areas are files or devices, as /proc/swaps names them."""

    total: int
    used: int
    areas: tuple


@dataclass(frozen=True)
class Finding:
    """One line of a report; `advice` is what to change, empty where nothing is wrong."""

    label: str
    text: str
    advice: str = ""


def board(root="/") -> str:
    """The name of the board in the device tree, such as "Raspberry Pi 5 Model B Rev 1.0"; "" without one."""
    return read(Path(root, "proc/device-tree/model")).strip("\0\n ")


def clocks(root="/") -> Clocks | None:
    """The frequency driver's settings; None where there is no such driver, as in most virtual machines."""
    folders = sorted(Path(root, _CPUS).glob("cpu[0-9]*/cpufreq"))
    if not folders:
        return None

    def words(name: str) -> tuple:
        return tuple(sorted({read(folder / name).strip() for folder in folders} - {""}))

    def megahertz(name: str) -> float | None:  # the files hold kHz
        return max((value / 1000 for value in map(_number, words(name)) if value is not None), default=None)

    return Clocks(
        words("scaling_governor"),
        words("scaling_driver"),
        megahertz("scaling_cur_freq"),
        megahertz("scaling_max_freq"),
        megahertz("cpuinfo_max_freq"),
    )


def clock_mhz(root="/") -> float | None:
    """Highest current clock of the cores."""
    found = clocks(root)
    if found is not None and found.current_mhz is not None:
        return found.current_mhz
    lines = read(Path(root, "proc/cpuinfo")).splitlines()
    found = [_number(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return max((value for value in found if value is not None), default=None)


def temperature_c(root="/") -> float | None:
    """The hottest thermal zone, in degrees Celsius."""
    zones = Path(root, "sys/class/thermal").glob("thermal_zone*")
    found = [_number(read(zone / "temp")) for zone in zones]  # in thousandths
    return max((value / 1000 for value in found if value is not None), default=None)


def throttle_bits() -> int | str | None:
    """What `vcgencmd get_throttled` gives, None where there is no such program; its complaint if it fails."""
    program = shutil.which("vcgencmd")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "get_throttled"], capture_output=True, text=True, errors="replace", timeout=5
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    told = re.search(r"throttled=(0x[0-9a-fA-F]{1,8})\b", done.stdout)  # "throttled=0x50005"
    if told:
        return int(told[1], 16)
    return (done.stdout + done.stderr).strip() or f"exit status {done.returncode}"


def swap(root="/") -> Swap | None:
    """Swap of the system; None where the system does not tell."""
    amounts = sizes(Path(root, "proc/meminfo"))
    if "SwapTotal" not in amounts or "SwapFree" not in amounts:
        return None
    total, free = amounts["SwapTotal"], amounts["SwapFree"]
    rows = [line.split() for line in read(Path(root, "proc/swaps")).splitlines()[1:]]
    return Swap(total, total - free, tuple(row[0] for row in rows if row))


def findings(root="/") -> list:
    """A Finding for all that this system tells, in the order clock, heat, throttling, swap."""
    found = [_clock_finding(root), _heat_finding(root), _throttling_finding(), _swap_finding(root)]
    return [finding for finding in found if finding is not None]


def _clock_finding(root) -> Finding | None:
    found = clocks(root)
    if found is None:
        return None
    current, limit = (
        "unknown" if value is None else f"{value:.0f} MHz" for value in (found.current_mhz, found.limit_mhz)
    )
    text = f"governor {', '.join(found.governors) or 'unknown'}, {current} of at most {limit}"
    advice = ""
    if found.limit_mhz and found.hardware_mhz and found.limit_mhz < found.hardware_mhz:
        text += f" (the hardware can do {found.hardware_mhz:.0f} MHz)"
        khz = f"{found.hardware_mhz * 1000:.0f}"
        advice = f"lift the limit: echo {khz} | sudo tee /{_CPUS}/cpu*/cpufreq/scaling_max_freq"
    slow = [name for name in found.governors if name != "performance"]
    if "powersave" in slow and not set(found.drivers) & set(_SELF_SCALING_DRIVERS):
        advice = f"powersave keeps the lowest clock: {_SET_GOVERNOR}"
    elif slow and not advice:
        advice = f"{slow[0]} raises the clock only under load; for a steady speed: {_SET_GOVERNOR}"
    return Finding("clock", text, advice)


def _heat_finding(root) -> Finding | None:
    degrees = temperature_c(root)
    if degrees is None:
        return None
    limit = _HOT_BOARD_C if board(root) else _HOT_C
    advice = "the clock is lowered when it gets hotter: fit a heat sink or a fan, open the case"
    return Finding("heat", f"{degrees:.1f} °C", advice if degrees >= limit else "")


def _throttling_finding() -> Finding | None:
    bits = throttle_bits()
    if bits is None:
        return None
    if isinstance(bits, str):
        message = f"vcgencmd does not tell: {' '.join(bits.split())[:200]}"
        return Finding("throttling", message, "let this user ask: sudo usermod -aG video $USER, log in anew")
    now, since_boot = (
        ", ".join(word for bit, word in _THROTTLE_WORDS.items() if part & bit) or "none"
        for part in (bits, bits >> 16)
    )
    ever = bits | bits >> 16
    advice = []
    if ever & _UNDER_VOLTAGE:
        advice.append("power: use the supply made for this board and a short, thick cable")
    if ever & _SOFT_LIMIT or (ever & (_CAPPED | _THROTTLED) and not ever & _UNDER_VOLTAGE):
        advice.append("heat: fit a heat sink or a fan")
    return Finding("throttling", f"now: {now}; since boot: {since_boot}", "; ".join(advice))


def _swap_finding(root) -> Finding | None:
    found = swap(root)
    if found is None:
        return None
    if not found.total:
        return Finding("swap", "off")
    text = f"{found.used / 1e6:.0f} MB in use of {found.total / 1e6:.0f} MB"
    text += f" ({', '.join(found.areas)})" if found.areas else ""
    advice = (
        "memory was short: close programs, or run with --kv-dtype int8 or a smaller --n-ctx; then "
        "'sudo swapoff -a && sudo swapon -a' empties it"
    )
    return Finding("swap", text, advice if found.used > _MUCH_SWAP else "")


def sizes(path) -> dict:
    """Name -> bytes of a file with lines such as "MemTotal:  1893000 kB"."""
    found = {}
    for line in read(path).splitlines():
        name, _, amount = line.partition(":")
        number, unit, _ = amount.rpartition("kB")
        kilobytes = _number(number) if unit else None
        if kilobytes is not None:
            found[name] = int(kilobytes) * 1024
    return found


def _number(text: str) -> float | None:
    """A number as the system writes them; None for anything else, such as "<unknown>"."""
    text = text.strip()
    return float(text) if re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", text) else None


def read(path) -> str:
    """The text of a file, "" if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
