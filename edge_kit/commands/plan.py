"""`edge-kit plan`: whether a model fits a device, and how fast its memory lets it decode."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict

from lite_runtime.errors import UsageError

HELP = "show whether a .nb file fits a device, its longest context and the speed its memory allows"

_UNITS = {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def ram_bytes(text: str) -> int:
    """An argparse type: a size of memory as it is sold, in units of 2^10: 2G, 512M, 4GiB, 1.5GB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MGT])(?:i?B)?", text.strip(), re.IGNORECASE)
    value = float(match[1]) * _UNITS[match[2].upper()] if match else 0.0
    if not 1 <= value < 1 << 50:
        raise argparse.ArgumentTypeError(f"'{text}', expected a size such as 2G, 512M or 4GiB")
    return int(value)


def bandwidth(text: str) -> float:
    """An argparse type: GB/s, as bytes per second."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:  # a NaN is in no range
        raise argparse.ArgumentTypeError(f"'{text}', expected GB/s above 0, such as 10.2")
    return value * 1e9


def add_arguments(parser) -> None:
    from edge_kit import targets

    parser.add_argument("file", metavar="FILE", help="a .nb file")
    parser.add_argument(
        "--target", choices=targets.names(), help="default: what the file was exported for, else this machine"
    )
    parser.add_argument(
        "--ram", type=ram_bytes, metavar="SIZE", help="2G, 512M, …; default: all sizes such devices have"
    )
    parser.add_argument(
        "--bandwidth",
        type=bandwidth,
        metavar="GB/S",
        help="what the device reads from memory, as edge-kit doctor measures it there; default: the target's",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(args) -> int:
    from edge_kit import plan, targets
    from lite_runtime.model import KV_DTYPES

    needs = plan.read_needs(args.file)
    known = needs.target in targets.names()
    target = targets.get(args.target or (needs.target if known else targets.default()))
    memory = target.memory
    sizes = [args.ram] if args.ram else memory.sizes
    if not sizes:
        raise UsageError(f"--ram: machines of target {target.name} differ; give a size, such as --ram 8G")
    rates = (args.bandwidth, args.bandwidth) if args.bandwidth else memory.read_bandwidth
    fits = [
        plan.fit(needs, ram, memory.system_bytes, kv_dtype, rates) for ram in sizes for kv_dtype in KV_DTYPES
    ]
    report = {
        "file": args.file,
        "target": target.name,
        **{name: value for name, value in asdict(needs).items() if name != "target"},
        "threads": target.threads,
        "isa_levels": target.isa_levels,
        "process_bytes": plan.PROCESS_BYTES,
        "system_bytes": memory.system_bytes,
        "read_bandwidth": rates,
        "fits": any(fit.fits for fit in fits),
        "plans": [{**asdict(fit), "fits": fit.fits} for fit in fits],
    }
    lines = _lines(args, target, needs, rates, fits)
    print(json.dumps(report, indent=2) if args.json else "\n".join(lines))
    return 0 if report["fits"] else 1


def _lines(args, target, needs, rates, fits) -> list:
    from edge_kit import plan

    taken = [
        ("file", needs.file_bytes),
        ("workspace", needs.workspace_bytes),
        ("process", plan.PROCESS_BYTES),
        ("system", target.memory.system_bytes),
    ]
    least = min(plan.LEAST_CONTEXT, needs.n_ctx)
    titles = ("tokens/s at 0", f"at {least}", "at the most")
    lines = [
        f"{args.file} on {target.name}, {target.description}",
        f"runs on          {_threads(target)}, the best kernel path of {', '.join(target.isa_levels)}",
        f"before the cache {_megabytes(sum(size for _, size in taken))}: "
        + ", ".join(f"{name} {_megabytes(size)}" for name, size in taken),
        f"read per token   {_megabytes(needs.parameter_bytes_per_token)} of weights and "
        + " or ".join(f"{size} bytes ({name})" for name, size in needs.kv_bytes.items())
        + " per token of context",
        "",
        f"{'RAM':8} {'kv-dtype':8} {'context':>8}" + "".join(f" {title:>15}" for title in titles),
    ]
    for fit in fits:
        row = f"{_ram(fit.ram):8} {fit.kv_dtype:8} "
        if fit.fits:
            speeds = [_range(fit.speeds.get(length)) for length in (0, least, fit.n_ctx)]
            lines.append(row + f"{fit.n_ctx:8}" + "".join(f" {text:>15}" for text in speeds))
        else:
            lines.append(row + f"does not fit: {_megabytes(fit.missing)} short at {least} tokens")
    lines.append("")
    if rates is None:
        lines.append(
            f"No read bandwidth is known for target {target.name}: measure it there with edge-kit doctor and "
            "give --bandwidth."
        )
    else:
        source = "given by --bandwidth" if args.bandwidth else "reported by others, not measured here"
        lines.append(
            f"Speeds are what memory allows at {_range(tuple(rate / 1e9 for rate in rates))} GB/s ({source})."
        )
    if not any(fit.fits for fit in fits):
        lines.append("It does not fit: take a device with more memory, or a smaller model.")
    return lines


def _threads(target) -> str:
    from edge_kit.targets.target import PERFORMANCE_CORES

    count = target.threads
    return "a thread per core of the fastest kind" if count == PERFORMANCE_CORES else f"{count} threads"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _ram(size: int) -> str:
    return f"{size / (1 << 30):.4g} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.4g} MiB"


def _range(values) -> str:
    if values is None:
        return "-"
    low, high = (f"{value:.1f}" for value in values)
    return low if low == high else f"{low} to {high}"
