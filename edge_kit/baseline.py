"""Baselines of `edge-kit bench`: kept as JSON, and a later run judged against one.

Decode is judged by its share of the read bandwidth and prefill by its share of the int8 multiply peak, both
measured around it: the tokens per second of a shared machine say little. Loading and peak memory are judged
as they are.

The rule. A figure's spread is half the range of its runs over their median. A figure is worse when its
median, against the baseline's, is worse by more than both spreads together, and by more than its least
change (`FIGURES`). Where others took processor time in too many runs, by half at least.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from lite_runtime.errors import FileFormatError, UsageError
from lite_runtime.model import KV_DTYPES

FORMAT = "edge-kit bench baseline"
VERSION = 1
_MOST_BYTES = 16 << 20  # of the file
LEAST_RUNS = 3  # undisturbed ones that a judgement needs
_DISTURBED_CHANGE = 0.5
_MOST_ALLOWED = 0.9  # a tenth of the speed is a regression, whatever the noise


@dataclass(frozen=True)
class Figure:
    """One judged figure of a run. Changes below `least_change` (relative) or `least_amount` are none."""

    label: str
    unit: str
    factor: float  # from the run's unit to `unit`
    higher_is_better: bool
    least_change: float
    least_amount: float = 0.0
    disturbed_by: str = ""  # the run's flag


FIGURES = {
    "prefill_peak_share": Figure("prefill", "% of the int8 peak", 100, True, 0.05, 0, "prefill_disturbed"),
    "bandwidth_share": Figure("decode", "% of the bandwidth", 100, True, 0.05, 0, "decode_disturbed"),
    "load_s": Figure("load", "ms", 1000, False, 0.25, 0.05, "load_disturbed"),
    "peak_rss_bytes": Figure("peak memory", "MB", 1e-6, False, 0.05, 16e6),
}


@dataclass(frozen=True)
class Verdict:
    """How one figure compares. ratio: now to baseline; above 1 is better, whatever the figure's direction."""

    figure: str
    baseline: float
    now: float
    ratio: float
    allowed: float  # how far from 1 the ratio may lie
    verdict: str  # "better", "same" or "worse"
    disturbed: bool


def samples_of(runs: list, name: str) -> tuple:
    """(values, whether they are disturbed): the undisturbed runs' where these are enough, else all."""
    flag = FIGURES[name].disturbed_by
    clean = [run[name] for run in runs if not run.get(flag)]
    if len(clean) >= LEAST_RUNS:
        return clean, False
    return [run[name] for run in runs], len(clean) < len(runs)


def spread(values: list) -> float:
    """Half the range over the median."""
    return (max(values) - min(values)) / 2 / statistics.median(values)


def judge(name: str, before: list, now: list) -> Verdict:
    """Compares the runs of a baseline with those of now by one figure of FIGURES."""
    figure = FIGURES[name]
    (old, old_disturbed), (new, new_disturbed) = samples_of(before, name), samples_of(now, name)
    disturbed = old_disturbed or new_disturbed
    a, b = statistics.median(old), statistics.median(new)
    ratio = b / a if figure.higher_is_better else a / b
    allowed = max(figure.least_change, spread(old) + spread(new), _DISTURBED_CHANGE if disturbed else 0.0)
    allowed = min(allowed, _MOST_ALLOWED)
    # Symmetric: what is worse than another is what that one is better than.
    if abs(b - a) <= figure.least_amount or 1 - allowed <= ratio <= 1 / (1 - allowed):
        verdict = "same"
    else:
        verdict = "better" if ratio > 1 else "worse"
    return Verdict(name, a, b, ratio, allowed, verdict, disturbed)


def judge_all(before: list, now: list) -> list:
    """A Verdict per figure of FIGURES."""
    return [judge(name, before, now) for name in FIGURES]


@dataclass(frozen=True)
class Baseline:
    """What `save` keeps: `runs` hold every figure of every run."""

    created: str
    model: dict  # name, digest, file_bytes
    settings: dict  # prompt_tokens, new_tokens, threads, kv_dtype
    machine: dict  # cpu, cores
    kernel: str
    versions: dict
    token_checksum: str
    runs: list

    def require_same_model(self, model: dict) -> None:
        """UsageError if another model was measured."""
        if model != self.model:
            raise UsageError(
                f"the baseline is of {_words(self.model)}, the file is {_words(model)}: compare the same "
                "model, or save a new baseline"
            )

    def require_same_settings(self, settings: dict) -> None:
        """UsageError if a setting differs: such runs do not measure the same."""
        for name, value in settings.items():
            if value != self.settings[name]:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"the baseline was measured with {option} {self.settings[name]}, this run has {value}: "
                    f"leave {option} out, or save a new baseline"
                )

    def require_same_machine(self, machine: dict) -> None:
        """UsageError on another machine: its figures would be judged as this one's."""
        if machine != self.machine:
            raise UsageError(
                f"the baseline is from another machine ({_words(self.machine)}), this is {_words(machine)}: "
                "save a new baseline here"
            )

    def require_same_tokens(self, checksum: str) -> None:
        """UsageError if the runs computed something else."""
        if checksum != self.token_checksum:
            raise UsageError(
                f"the token checksum is {checksum}, the baseline's {self.token_checksum}: the same file "
                "gives other tokens than then, so the speeds are of two computations; save a new baseline"
            )


def _words(fields: dict) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in fields.items())


def require_writable(path: str, option: str) -> None:
    """UsageError, before anything is measured, if no file can be written there."""
    target = Path(path)
    try:
        if target.is_dir() or not target.parent.is_dir():
            found = "is a folder" if target.is_dir() else f"lies in {target.parent}, which is no folder"
            raise UsageError(f"{option} {path} {found}, expected the name of a file in a folder that exists")
        if target.exists() and not target.is_file():
            raise UsageError(f"{option} {path} is a device or a pipe, expected the name of a file")
        partial = _partial(path)
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be written: {error.strerror}; name another file") from None


def _partial(path: str) -> Path:
    """Beside the file that is meant, wherever links lead."""
    target = Path(path).resolve()
    return target.with_name(f"{target.name}.{os.getpid()}.part")


def save(path: str, baseline: Baseline) -> None:
    """Writes the file whole or not at all."""
    partial = _partial(path)
    try:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, "version": VERSION, **asdict(baseline)}, file, indent=2)
            file.write("\n")
        os.replace(partial, Path(path).resolve())
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def load(path: str) -> Baseline:
    """Reads a baseline; FileFormatError if the file is none, or damaged."""
    if Path(path).exists() and not (Path(path).is_file() and Path(path).stat().st_size <= _MOST_BYTES):
        raise _damaged(path, f"it is no file of at most {_MOST_BYTES >> 20} MB")
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (ValueError, RecursionError) as error:  # of JSON or of UTF-8
        raise _damaged(path, f"it is no JSON ({error})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _damaged(path, f"its format is not '{FORMAT}'")
    if content.get("version") != VERSION:
        raise _damaged(path, f"it has version {content.get('version')!r}, this kit reads {VERSION}")
    fields = {name: content.get(name) for name in Baseline.__dataclass_fields__}
    for name, value in fields.items():
        expected = {"runs": list, "created": str, "kernel": str, "token_checksum": str}.get(name, dict)
        if not isinstance(value, expected):
            raise _damaged(path, f"'{name}' is {type(value).__name__}, expected {expected.__name__}")
    for name in ("prompt_tokens", "new_tokens", "threads"):
        value = fields["settings"].get(name)
        if type(value) is not int or value < 1:
            raise _damaged(path, f"setting '{name}' is {value!r}, expected an integer of at least 1")
    found = fields["settings"].get("kv_dtype")
    if not isinstance(found, str) or found not in KV_DTYPES:
        raise _damaged(path, f"setting 'kv_dtype' is {found!r}, expected one of {', '.join(KV_DTYPES)}")
    if len(fields["runs"]) < LEAST_RUNS:
        raise _damaged(path, f"it has {len(fields['runs'])} runs, expected at least {LEAST_RUNS}")
    for run in fields["runs"]:
        for name in FIGURES:
            value = run.get(name) if isinstance(run, dict) else None
            if type(value) not in (int, float) or not 1e-9 < value < 1e15:
                raise _damaged(path, f"a run's '{name}' is no number between 1e-9 and 1e15")
    return Baseline(**fields)


def _damaged(path: str, what: str) -> FileFormatError:
    return FileFormatError(f"{path} is no baseline of 'edge-kit bench --save': {what}; save a new one")
