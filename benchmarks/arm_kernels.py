"""The ARM kernels without an ARM CPU: instructions and cycles per multiply-accumulate, next to llama.cpp's.

    python benchmarks/arm_kernels.py                                          as tables
    python benchmarks/arm_kernels.py --check --skip-llama --skip-cycles       against the stored counts
    python benchmarks/arm_kernels.py --json benchmarks/results/arm_kernels.json     store them anew
    CXX="python -m ziglang c++ -target aarch64-linux-gnu" python benchmarks/arm_kernels.py --skip-llama ...
        by the compiler of the wheels

Instructions are counted by a plugin of qemu-user, for each kernel path on a CPU that chooses it, in linear
layers of the 1.5 B model's MLP: one row (decode) and 64 rows (prefill), activations quantized in the layer.
The difference of two runs is one layer; see benchmarks/arm/counts.py. llama.cpp computes the same layers in
Q8_0, its weights repacked where it does that for the CPU, compiled by the same compiler with its own release
flags: benchmarks/arm/programs.py fetches and builds it, which takes some minutes the first time.

Cycles are `llvm-mca`'s for the instructions that these layers were seen to execute while they multiply; see
benchmarks/arm/cycles.py for what it does not know. Cortex-A72 is the Raspberry Pi 4's core, Neoverse N1
nearly the Pi 5's (Cortex-A76), N2 and V1 are the ones with int8 matrices that it has a model of.

Needs g++-aarch64-linux-gnu and qemu-user; llvm-19 for the cycles; cmake for llama.cpp.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":  # instead of this folder
    sys.path[0] = str(ROOT)

from benchmarks.arm import cycles, programs  # noqa: E402
from benchmarks.arm.counts import CountError, Emulator  # noqa: E402
from benchmarks.engines import llama_cpp  # noqa: E402
from benchmarks.engines.base import EngineError  # noqa: E402
from edge_kit.baseline import require_writable  # noqa: E402
from edge_kit.cli import Parser  # noqa: E402
from lite_runtime import build  # noqa: E402
from lite_runtime.errors import EdgeKitError, UsageError  # noqa: E402

STORED = ROOT / "benchmarks" / "results" / "arm_kernels.json"
TOLERANCE = 0.02  # more instructions than stored, as a part of them, are a regression
PHASES = {"decode": 1, "prefill": 64}  # rows
SHAPES = ((8960, 1536), (1536, 8960))  # outputs, inputs: gate and up, down
CORES = {  # kernel path -> CPUs as llvm-mca calls them
    "neon": ("cortex-a72", "neoverse-n1"),
    "neon-dotprod": ("neoverse-n1",),
    "neon-i8mm": ("neoverse-n2", "neoverse-v1"),
}
_TRACED = (64, 1536)  # outputs, inputs
LLVM_MCA = ("llvm-mca-19", "llvm-mca")


def main(arguments=None) -> int:
    try:
        args = parse_arguments(arguments)
        stored = read_stored() if args.check else None
        result = measure(args)
        if args.json:
            write(Path(args.json), result)
        print(markdown(result), end="")
        return report(*check(result, stored)) if args.check else 0
    except (EdgeKitError, EngineError, CountError, cycles.CyclesError, build.BuildError, OSError) as error:
        print(f"arm_kernels: error: {error}", file=sys.stderr)
        return 2


def parse_arguments(arguments=None):
    parser = Parser(prog="arm_kernels.py", description="instructions and cycles per MAC of the ARM kernels")
    parser.add_argument("--skip-llama", action="store_true", help="the kit's own kernels alone")
    parser.add_argument("--skip-cycles", action="store_true", help="count instructions alone")
    parser.add_argument("--check", action="store_true",
                        help=f"exit with 1 where a count is over the stored one ({STORED.relative_to(ROOT)})")
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "arm_kernels", metavar="DIR")
    args = parser.parse_args(arguments)
    args.work = args.work.absolute()
    if args.json:
        require_writable(args.json, "--json")
    return args


def read_stored() -> list:
    """One result of `measure` per compiler."""
    try:
        return json.loads(STORED.read_text())
    except (OSError, ValueError) as error:
        advice = f"remove it, and --json {STORED} writes it anew"
        raise UsageError(f"{STORED} cannot be read ({error}): {advice}") from None


def write(path: Path, result: dict) -> None:
    """Beside the results of other compilers, if `path` is STORED."""
    others = read_stored() if path.exists() and path.samefile(STORED) else []
    others = [other for other in others if major(other["compiler"]) != major(result["compiler"])]
    ordered = sorted([*others, result], key=lambda one: one["compiler"], reverse=True)
    path.write_text(json.dumps(ordered, indent=1) + "\n")


def measure(args) -> dict:
    """Everything that the outputs show."""
    made = programs.Programs(args.work)
    llvm_mca = None if args.skip_cycles else next(filter(None, map(shutil.which, LLVM_MCA)), None)
    if llvm_mca is None and not args.skip_cycles:
        raise UsageError("cycles need llvm-mca: 'apt install llvm-19', or --skip-cycles")
    result = {
        "compiler": made.compiler_version,
        "qemu": ".".join(map(str, programs.qemu_version())),
        "llvm_mca": llvm_mca and cycles.version(llvm_mca),
        "llama_cpp_python": None if args.skip_llama else llama_cpp.VERSION,
        "counts": [],
        "cycles": [],
    }
    plugin, own = made.plugin(), made.edge_kit()
    for cpu, path in build.QEMU_CPUS.items():
        emulator = Emulator(cpu, plugin)
        engines = {"edge-kit": own}
        if not args.skip_llama:
            engines["llama.cpp"] = made.llama_cpp(path)
        for engine, program in engines.items():
            say(f"{path}: {engine}")
            result["counts"] += count(emulator, path, engine, program)
            if llvm_mca:
                result["cycles"] += simulate(emulator, path, engine, program, llvm_mca)
    return result


def count(emulator: Emulator, path: str, engine: str, program: Path) -> list:
    """Rows of "counts": instructions per multiply-accumulate."""
    found = []
    for phase, rows in PHASES.items():
        for n, k in SHAPES:
            place = {"path": path, "engine": engine, "phase": phase, "n": n, "k": k}
            figures = emulator.per_mac(program, rows, n, k)
            found.append({**place, **{name: round(value, 5) for name, value in figures.items()}})
    return found


def simulate(emulator: Emulator, path: str, engine: str, program: Path, llvm_mca: str) -> list:
    """Rows of "cycles": cycles per multiply-accumulate."""
    found = []
    for phase, rows in PHASES.items():
        objdump = build.QEMU_COMPILER.replace("g++", "objdump")
        lines = cycles.instructions(program, emulator.trace(program, rows, *_TRACED), objdump)
        for core in CORES[path]:
            figure = round(cycles.cycles_per_mac(lines, core, llvm_mca), 5)
            found.append({"path": path, "engine": engine, "phase": phase, "core": core, "cycles": figure})
    return found


def check(result: dict, stored: list) -> tuple:
    """(regressions, notes) of the kit's own counts, as sentences."""
    compilers = {major(one["compiler"]): one for one in stored}
    if major(result["compiler"]) not in compilers:
        return [], [f"not compared: compiled by {result['compiler']}, the stored by {', '.join(compilers)}"]
    regressions, notes = [], []
    known = {place(row): row["total"] for row in compilers[major(result["compiler"])]["counts"]}
    for row in result["counts"]:
        if row["engine"] != "edge-kit":
            continue
        before = known.get(place(row))
        where = f"{row['path']} {row['phase']}, {row['n']} outputs, {row['k']} inputs"
        if before is None:
            regressions.append(f"{where}: no stored count; --json {STORED} stores one")
            continue
        change = f"{where}: {row['total']:.4f} instructions per MAC, stored {before:.4f}"
        if row["total"] > before * (1 + TOLERANCE):
            regressions.append(change)
        elif row["total"] < before * (1 - TOLERANCE):
            notes.append(f"fewer than stored, so store them: {change}")
    return regressions, notes


def place(row: dict) -> tuple:
    return row["path"], row["engine"], row["phase"], row["n"], row["k"]


def major(compiler: str) -> str:
    """ "gcc 12" of "gcc 12.2.0" """
    return compiler.split(".")[0]


def report(regressions: list, notes: list) -> int:
    for note in notes:
        say(note)
    for regression in regressions:
        say(f"regression: {regression}")
    return 1 if regressions else 0


def markdown(result: dict) -> str:
    """Two tables; llama.cpp's column where it was measured."""
    engines = list(dict.fromkeys(row["engine"] for row in result["counts"]))
    text = f"\nInstructions per MAC ({result['compiler']}, qemu {result['qemu']}; once per layer)\n\n"
    text += table(("path", "phase", "N", "K"), engines, result["counts"],
                  lambda row: (row["path"], row["phase"], f"{row['n']:,}", f"{row['k']:,}"),
                  lambda row: f"{row['total']:.4f} ({row['rest']:.4f})", "total")
    if result["cycles"]:
        text += f"\nCycles per MAC (llvm-mca {result['llvm_mca']})\n\n"
        text += table(("path", "phase", "core"), engines, result["cycles"],
                      lambda row: (row["path"], row["phase"], row["core"]),
                      lambda row: f"{row['cycles']:.4f}", "cycles")
    return text


def table(heads: tuple, engines: list, rows: list, name, show, figure: str) -> str:
    """One line per name(row), a column per engine, and with two of them the first's part of the second's."""
    lines: dict = {}
    for row in rows:
        lines.setdefault(name(row), []).append(row)
    both = len(engines) == 2
    heads = (*heads, *engines, *([f"{engines[0]} / {engines[1]}"] if both else []))
    text = f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}\n"
    for names, found in lines.items():
        ratio = [f"{found[0][figure] / found[1][figure]:.2f}"] if both else []
        text += f"| {' | '.join((*names, *map(show, found), *ratio))} |\n"
    return text


def say(text: str) -> None:
    print(f"arm_kernels: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
