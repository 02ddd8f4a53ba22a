"""What `edge-kit doctor` reads on a device: clocks, heat, throttling, swap; and what it says to change."""

from __future__ import annotations

import os

import pytest

from edge_kit.cli import main
from lite_runtime import device

PI = "Raspberry Pi 4 Model B Rev 1.4\0"


def write(root, files: dict):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


FULL = 1800000  # kHz


def cpufreq(governor="performance", driver="cpufreq-dt", current=FULL, limit=FULL, hardware=FULL, cpus=4):
    values = {
        "scaling_governor": governor,
        "scaling_driver": driver,
        "scaling_cur_freq": current,
        "scaling_max_freq": limit,
        "cpuinfo_max_freq": hardware,
    }
    return {
        f"sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}": f"{value}\n"
        for cpu in range(cpus)
        for name, value in values.items()
    }


def memory(total_kb: int, free_kb: int, *areas: str) -> dict:
    swaps = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
    for area in areas:
        swaps += f"{area} partition\t{total_kb}\t\t{total_kb - free_kb}\t\t100\n"
    return {
        "proc/meminfo": f"MemTotal:  1893000 kB\nSwapTotal:  {total_kb} kB\nSwapFree:  {free_kb} kB\n",
        "proc/swaps": swaps,
    }


@pytest.fixture
def vcgencmd(tmp_path, monkeypatch):
    """vcgencmd(shell) puts a program of that name on the PATH."""
    folder = tmp_path / "bin"

    def make(shell: str):
        program = folder / "vcgencmd"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\ntest \"$1\" = get_throttled || exit 9\n{shell}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    return make


def finding(root, label: str) -> device.Finding:
    return next(found for found in device.findings(root) if found.label == label)


def test_a_healthy_pi_needs_no_change(tmp_path, vcgencmd):
    vcgencmd("echo throttled=0x0")
    root = write(
        tmp_path,
        {
            "proc/device-tree/model": PI,
            "sys/class/thermal/thermal_zone0/temp": "48686\n",
            **cpufreq(),
            **memory(0, 0),
        },
    )
    assert device.board(root) == PI.strip("\0")
    found = device.findings(root)
    assert [(line.label, line.text, line.advice) for line in found] == [
        ("clock", "governor performance, 1800 MHz of at most 1800 MHz", ""),
        ("heat", "48.7 °C", ""),
        ("throttling", "now: none; since boot: none", ""),
        ("swap", "off", ""),
    ]


def test_a_system_that_tells_nothing_gives_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert device.findings(tmp_path) == []
    assert device.clock_mhz(tmp_path) is None and device.temperature_c(tmp_path) is None
    assert device.board(tmp_path) == ""


@pytest.mark.parametrize(
    "settings, text, advice",
    [
        (
            {"governor": "powersave", "current": 600000},
            "governor powersave, 600 MHz of",
            "powersave keeps the lowest clock: echo performance | sudo tee",
        ),
        ({"governor": "ondemand", "current": 600000}, "governor ondemand", "ondemand raises the clock only"),
        ({"governor": "powersave", "driver": "intel_pstate"}, "governor powersave", "powersave raises the"),
        (
            {"limit": 1000000, "current": 1000000},
            "1000 MHz of at most 1000 MHz (the hardware can do 1800 MHz)",
            "lift the limit: echo 1800000 | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_max_freq",
        ),
    ],
)
def test_slow_clocks(settings, text, advice, tmp_path):
    found = finding(write(tmp_path, cpufreq(**settings)), "clock")
    assert text in found.text and found.advice.startswith(advice)


def test_the_fastest_cores_count(tmp_path):
    files = cpufreq(current=600000, limit=1400000, hardware=1400000, cpus=4)
    fast = cpufreq(current=2200000, limit=2400000, hardware=2400000, cpus=6)
    files.update({name: text for name, text in fast.items() if "cpu4" in name or "cpu5" in name})
    found = device.clocks(write(tmp_path, files))
    assert (found.current_mhz, found.limit_mhz, found.hardware_mhz) == (2200, 2400, 2400)
    assert device.clock_mhz(tmp_path) == 2200


def test_without_a_frequency_driver_cpuinfo_tells_the_clock(tmp_path):
    cores = "processor\t: 0\ncpu MHz\t\t: 2100.5\nprocessor\t: 1\ncpu MHz\t\t: 2600.0\n"
    write(tmp_path, {"proc/cpuinfo": cores})
    assert device.clocks(tmp_path) is None
    assert device.clock_mhz(tmp_path) == 2600.0


def test_the_hottest_zone_counts_and_boards_bear_less(tmp_path):
    zones = {f"sys/class/thermal/thermal_zone{i}/temp": text for i, text in enumerate(("41000\n", "82500\n"))}
    root = write(tmp_path, zones)
    assert finding(root, "heat").text == "82.5 °C" and not finding(root, "heat").advice
    write(root, {"proc/device-tree/model": PI})
    assert "fan" in finding(root, "heat").advice


@pytest.mark.parametrize(
    "bits, text, advice",
    [
        (
            "0x50005",
            "now: under-voltage, throttled; since boot: under-voltage, throttled",
            "power: use the supply made for this board and a short, thick cable",
        ),
        ("0x20000", "now: none; since boot: clock capped", "heat: fit a heat sink or a fan"),
        ("0xe0008", "now: soft temperature limit; since boot: clock capped, throttled, soft", "heat: fit"),
        ("0x80001", "now: under-voltage; since boot: soft temperature limit", "power: use"),
    ],
)
def test_throttling_is_decoded(bits, text, advice, tmp_path, vcgencmd):
    vcgencmd(f"echo throttled={bits}")
    found = finding(tmp_path, "throttling")
    assert found.text.startswith(text) and found.advice.startswith(advice)
    assert ("heat:" in found.advice) == (bits != "0x50005")


def test_a_refusal_of_vcgencmd_is_shown(tmp_path, vcgencmd):
    vcgencmd("echo \"Can't open device file: /dev/vcio\" >&2; exit 1")
    found = finding(tmp_path, "throttling")
    assert found.text == "vcgencmd does not tell: Can't open device file: /dev/vcio"
    assert "usermod -aG video" in found.advice


@pytest.mark.parametrize("odd", ["", "<unknown>", "2400,5", "²", "--5", "9" * 5000, "x kB"])
def test_what_is_no_number_counts_as_not_told(odd, tmp_path, vcgencmd):
    vcgencmd("printf '\\377'")
    files = {
        "proc/cpuinfo": f"cpu MHz\ncpu MHz\t: {odd}\n",
        "proc/meminfo": f"SwapTotal: {odd}\nSwapFree: 5 kB\n",
        "sys/class/thermal/thermal_zone0/temp": f"{odd}\n",
        **cpufreq(current=odd, limit=odd, hardware=odd),
    }
    assert device.clock_mhz(write(tmp_path, files)) is None
    assert [(found.label, found.text) for found in device.findings(tmp_path)] == [
        ("clock", "governor performance, unknown of at most unknown"),
        ("throttling", "vcgencmd does not tell: \ufffd"),
    ]


def test_warnings_of_vcgencmd_are_passed_over(tmp_path, vcgencmd):
    vcgencmd("echo deprecated >&2; echo throttled=0x50000")
    assert finding(tmp_path, "throttling").text == "now: none; since boot: under-voltage, throttled"


def test_swap_in_use_is_named_with_its_areas(tmp_path):
    found = finding(write(tmp_path, memory(2097136, 1572848, "/dev/zram0", "/var/swap")), "swap")
    assert found.text == "537 MB in use of 2147 MB (/dev/zram0, /var/swap)"
    assert "--kv-dtype int8" in found.advice
    found = finding(write(tmp_path, memory(2097136, 2090000, "/var/swap")), "swap")
    assert found.text.startswith("7 MB in use") and not found.advice


def test_the_command_shows_findings_and_advice(monkeypatch, capsys, native_library):
    found = [device.Finding("heat", "82.5 °C", "fit a fan"), device.Finding("swap", "off")]
    monkeypatch.setattr(device, "findings", lambda: found)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("heat       82.5 °C")
    assert lines[at + 1] == "           to change: fit a fan" and lines[at + 2] == "swap       off"
    assert any(line.startswith("target     ") for line in lines)
