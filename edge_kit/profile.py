"""Where the time of a prefill and of a decode goes, by kind of step, against what the machine can give.

The native steps come from the runtime's own clocks, the rest is timed around the calls. Equal steps of all
layers are one part. Where many rows go through an INT8 MLP at once, the time of gate and up includes their
activation and its quantization. Ceilings are measured before and after each phase, with the same threads;
the better counts.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from edge_kit.fixed_text import fixed_texts
from edge_kit.speed import greedy, prompt_ids
from lite_runtime import machine

# Below this share of a ceiling it is not what a part waits for.
_LEAST_SHARE = 0.25
# Attention multiplies fp32, which has no ceiling here: from this share of the bandwidth on it waits for that.
_READING_SHARE = 0.5
_LAYER = re.compile(r"(?:^|\.)\d+\.")
_TENSOR = re.compile(r"\.(?:weight|bias)$")


@dataclass
class Part:
    """One kind of step over a phase."""

    kind: str  # of the runtime's steps; "tokenizer", "sampling"; "calls": from Python into native code
    name: str  # of a linear: its weights, without the layer
    calls: int = 0
    seconds: float = 0.0
    bytes: int = 0  # read of weights, tables and cache
    operations: int = 0  # multiply-adds; int8 in linears, fp32 in attention
    bandwidth_share: float = 0.0  # of the read bandwidth
    peak_share: float = 0.0  # of the int8 multiply peak; 0 where the multiplications are no int8 ones
    bound: str = ""  # "bandwidth", "arithmetic", or "other": overhead, or work within the caches

    @property
    def label(self) -> str:
        """Kind and name, in a word where they are the same."""
        return self.name if self.name == self.kind else f"{self.kind} {self.name}"

    @property
    def nearest_ceiling(self) -> str:
        """How near it comes to its nearest ceiling, in words; empty where nothing comes from memory."""
        if self.kind not in ("linear", "attention"):
            return ""
        if self.peak_share > self.bandwidth_share:
            return f"{self.peak_share:.0%} of the int8 peak"
        return f"{self.bandwidth_share:.0%} of the bandwidth"


@dataclass
class Phase:
    """Prefill or decode."""

    tokens: int
    seconds: float  # on the clock, from outside
    bandwidth: float  # bytes per second
    peak: float  # int8 multiply-adds per second of the kernel path taken
    parts: list = field(default_factory=list)  # of Part, longest first


def step_name(step) -> str:
    """What equal steps of all layers have in common: "q_proj + k_proj + v_proj" of a linear, or its kind."""
    if step.kind != "linear":
        return step.kind
    weights = (_TENSOR.sub("", name) for name in step.name.split(" + "))
    return " + ".join(_LAYER.split(name)[-1].split(".")[-1] for name in weights)


class Recorder:
    """Collects the parts of a phase."""

    def __init__(self):
        self._parts = {}

    def add(self, kind: str, name: str, calls: int, seconds: float, nbytes: int = 0, operations: int = 0):
        part = self._parts.setdefault((kind, name), Part(kind, name))
        part.calls += calls
        part.seconds += seconds
        part.bytes += nbytes
        part.operations += operations

    def timed(self, kind: str, work):
        """Gives work() and adds the time it took."""
        started = time.perf_counter()
        result = work()
        self.add(kind, kind, 1, time.perf_counter() - started)
        return result

    def add_steps(self, steps: list, forward_seconds: float, n_forwards: int) -> None:
        """Native steps; what they leave of the forwards' time is the calls' own."""
        for step in steps:
            self.add(step.kind, step_name(step), step.calls, step.seconds, step.bytes, step.operations)
        rest = forward_seconds - sum(step.seconds for step in steps)
        self.add("calls", "calls", n_forwards, max(0.0, rest))

    def phase(self, tokens: int, seconds: float, bandwidth: float, peak: float, int8: bool) -> Phase:
        """The parts against their ceilings; `int8`: whether linears multiply int8."""
        parts = sorted(self._parts.values(), key=lambda part: -part.seconds)
        for part in parts:
            if part.seconds > 0:
                part.bandwidth_share = part.bytes / part.seconds / bandwidth
                if int8 and part.kind == "linear":
                    part.peak_share = part.operations / part.seconds / peak
            part.bound = _bound(part)
        return Phase(tokens, seconds, bandwidth, peak, parts)


def _bound(part: Part) -> str:
    if part.kind == "linear" and max(part.bandwidth_share, part.peak_share) >= _LEAST_SHARE:
        return "bandwidth" if part.bandwidth_share >= part.peak_share else "arithmetic"
    if part.kind == "attention":
        return "bandwidth" if part.bandwidth_share >= _READING_SHARE else "arithmetic"
    return "other"


def profile(model, n_prompt: int, n_new: int) -> dict:
    """{"prefill": Phase, "decode": Phase} of one greedy run over a real text, after one to warm up."""
    has_text = "tokenizer.json" in model.bundle
    ids = _prompt(model, n_prompt, has_text)
    text = model.text.decode(ids) if has_text else ""
    with model.session() as session:
        model.forward([(session, ids, "last")])
        model.forward([(session, ids[:1], "last")])
    with model.session() as session, model.profile() as take:
        ceilings = [_ceilings(model)]
        recorder, started = Recorder(), time.perf_counter()
        if has_text:
            recorder.timed("tokenizer", lambda: model.text.encode(text))
        logits, forward_seconds = _forward(model, session, ids)
        prefill = (recorder, n_prompt, time.perf_counter() - started)
        recorder.add_steps(take(), forward_seconds, 1)
        ceilings.append(_ceilings(model))
        decode = _decode(model, session, logits, n_new, take, has_text)
        ceilings.append(_ceilings(model))
    int8 = model.mode == "int8" and _has_int8(model)
    phases = {}
    for name, (recorder, tokens, seconds), i in (("prefill", prefill, 0), ("decode", decode, 1)):
        bandwidth, peak = (max(pair) for pair in zip(ceilings[i], ceilings[i + 1]))
        phases[name] = recorder.phase(tokens, seconds, bandwidth, peak, int8)
    return phases


def _decode(model, session, logits, n_new: int, take, has_text: bool) -> tuple:
    detokenizer = model.text.detokenizer() if has_text else None
    recorder, forwards, started = Recorder(), 0.0, time.perf_counter()
    for _ in range(n_new):
        token = recorder.timed("sampling", lambda logits=logits: greedy(logits, len(session)))
        if detokenizer is not None:
            recorder.timed("tokenizer", lambda token=token: detokenizer.add(token))
        logits, seconds = _forward(model, session, [token])
        forwards += seconds
    total = time.perf_counter() - started
    recorder.add_steps(take(), forwards, n_new)
    return recorder, n_new, total


def _forward(model, session, ids) -> tuple:
    started = time.perf_counter()
    (logits,) = model.forward([(session, ids, "last")])
    return logits, time.perf_counter() - started


def _ceilings(model) -> tuple:
    """(bytes per second, int8 multiply-adds per second)."""
    return model.read_bandwidth(), machine.multiply_peak(model.info.n_threads, model.info.isa)


def _has_int8(model) -> bool:
    return model.manifest.get("quant", "int8") == "int8"


def _prompt(model, n: int, has_text: bool) -> list:
    """`n` ids: of the fixed English text where the model has a tokenizer, else pseudo-random."""
    if not has_text:
        return prompt_ids(n, model.info.n_vocab)
    ids = model.text.encode(fixed_texts()[0])
    return (ids * (n // len(ids) + 1))[:n]


def bounding(phases: dict) -> tuple:
    """(phase, part) that takes most of the time of all phases."""
    return max(
        ((name, part) for name, phase in phases.items() for part in phase.parts),
        key=lambda pair: pair[1].seconds,
    )
