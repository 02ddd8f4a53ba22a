"""Whether an engine computes what the checkpoint says: forced-token top-1 agreement with fp32 on real text.

Measured once per engine, quantization and version, on the demo model, and remembered in the work
folder. An engine below the threshold is timed and marked: rounding more coarsely than fp32 allows is its own
choice, and makes it faster if anything. Far below, its model is taken for broken and not timed.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.engines import base
from edge_kit.fixed_text import fixed_texts

from . import environments
from .models import Models
from .worker_process import WorkerProcess

TOKENS_PER_TEXT = 192  # of each fixed text, so that one pass takes seconds on every engine
SECONDS = 900.0
_THREADS = 2


def threshold(bits: int) -> float:
    """The agreement asked for: rounding weights to 8 bits turns few predictions, to 4 bits many."""
    return 0.90 if bits >= 8 else 0.75


def least(bits: int) -> float:
    """Below this the conversion itself is wrong. Plain fp32 arithmetic on the demo's weights rounded to 4
    bits keeps 61 to 71 %."""
    return 0.75 if bits >= 8 else 0.50


def key(engine: base.Engine, quant: str) -> str:
    """What a figure is remembered under."""
    return " ".join([engine.name, quant, *engine.stamp()])


class Fidelity:
    """Agreement figures of a work folder."""

    def __init__(self, work: Path):
        self._work = work
        self._demo = Models("demo", work)
        self._memory = work / "fidelity.json"
        self._known = json.loads(self._memory.read_text()) if self._memory.is_file() else {}
        self._ids = None

    def check(self, engine: base.Engine, quant: str) -> dict:
        """{"top1", "tokens", "reference", "threshold"}; EngineError if it fails or its model is broken.

        Below the threshold also "exact_top1", where the engine can compute the same files in fp32: what its
        weights alone keep.
        """
        known = key(engine, quant)
        if known not in self._known:
            self._known[known] = self._compare(engine, quant)
            self._save()
        result = self._known[known]
        lowest = least(engine.bits(quant))
        if result["top1"] < lowest:
            raise base.EngineError(
                f"{engine.name} {quant}: top-1 agreement with fp32 is {result['top1']:.1%} over "
                f"{result['tokens']} tokens of the demo model, expected at least {lowest:.0%}"
            )
        return result

    def _compare(self, engine: base.Engine, quant: str) -> dict:
        reference = self._reference()
        result = {
            "top1": _agreement(self._predict(engine, quant), reference["ids"]),
            "tokens": sum(map(len, reference["ids"])),
            "reference": reference["engine"],
            "threshold": threshold(engine.bits(quant)),
        }
        exact = engine.exact(quant)
        if result["top1"] < result["threshold"] and exact:
            result["exact_top1"] = _agreement(self._predict(engine, quant, exact), reference["ids"])
        return result

    def _reference(self) -> dict:
        """fp32 predictions: of transformers where it is installed, else of this kit's exact mode."""
        engine, quant = base.find("edge-kit"), "fp32"
        if "transformers" in base.names():
            peer = base.find("transformers")
            if "fp32" in peer.quants and environments.skip_reason(peer, self._work) is None:
                engine, quant = peer, "fp32"
        known = f"reference {key(engine, quant)}"
        if known not in self._known:
            self._known[known] = {
                "engine": f"{engine.name} {quant}",
                "ids": self._predict(engine, quant),
            }
            self._save()
        return self._known[known]

    def _predict(self, engine: base.Engine, quant: str, load_as: str = "") -> list:
        self._demo.write_hf()
        folder = self._demo.convert(engine, quant)
        log = environments.folder_of(engine, self._work) / "worker.log"
        python = environments.python_of(engine, self._work)
        with WorkerProcess(engine, python, folder, load_as or quant, _THREADS, log) as worker:
            worker.ask(SECONDS, "load")
            return [worker.ask(SECONDS, "top1", ids=ids)["ids"] for ids in self._texts()]

    def _texts(self) -> list:
        if self._ids is None:
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(self._demo.hf_folder / "tokenizer.json"))
            self._ids = [tokenizer.encode(text).ids[:TOKENS_PER_TEXT] for text in fixed_texts()]
        return self._ids

    def _save(self) -> None:
        self._memory.write_text(json.dumps(self._known))

    def remove(self) -> None:
        """Deletes the demo models that were made for the check; the figures stay."""
        self._demo.remove()


def _agreement(found: list, expected: list) -> float:
    pairs = [pair for ours, theirs in zip(found, expected) for pair in zip(ours, theirs)]
    return sum(a == b for a, b in pairs) / len(pairs)
