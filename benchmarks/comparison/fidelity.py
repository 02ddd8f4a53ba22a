"""Whether an engine computes what the checkpoint says: forced-token top-1 agreement with fp32 on real text.

Measured once per engine, quantization and version, on the demo model, and remembered in the work
folder. What disagrees is not timed.
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
    """The least agreement: rounding weights to 8 bits turns few predictions, to 4 bits many."""
    return 0.90 if bits >= 8 else 0.75


class Fidelity:
    """Agreement figures of a work folder."""

    def __init__(self, work: Path):
        self._work = work
        self._demo = Models("demo", work)
        self._memory = work / "fidelity.json"
        self._known = json.loads(self._memory.read_text()) if self._memory.is_file() else {}
        self._ids = None

    def check(self, engine: base.Engine, quant: str) -> dict:
        """{"top1", "tokens", "reference", "threshold"}; EngineError if the engine fails or disagrees."""
        key = " ".join([engine.name, quant, *engine.requirements])
        if key not in self._known:
            reference = self._reference()
            found = self._predict(engine, quant)
            pairs = [pair for ours, theirs in zip(found, reference["ids"]) for pair in zip(ours, theirs)]
            self._known[key] = {
                "top1": sum(a == b for a, b in pairs) / len(pairs),
                "tokens": len(pairs),
                "reference": reference["engine"],
                "threshold": threshold(engine.bits(quant)),
            }
            self._save()
        result = self._known[key]
        if result["top1"] < result["threshold"]:
            raise base.EngineError(
                f"{engine.name} {quant}: top-1 agreement with fp32 is {result['top1']:.1%} over "
                f"{result['tokens']} tokens of the demo model, expected at least {result['threshold']:.0%}"
            )
        return result

    def _reference(self) -> dict:
        """fp32 predictions: of transformers where it is installed, else of this kit's exact mode."""
        engine, quant = base.find("edge-kit"), "fp32"
        if "transformers" in base.names():
            peer = base.find("transformers")
            if "fp32" in peer.quants and environments.skip_reason(peer, self._work) is None:
                engine, quant = peer, "fp32"
        if "reference" not in self._known:
            self._known["reference"] = {
                "engine": f"{engine.name} {quant}",
                "ids": self._predict(engine, quant),
            }
            self._save()
        return self._known["reference"]

    def _predict(self, engine: base.Engine, quant: str) -> list:
        self._demo.write_hf()
        folder = self._demo.convert(engine, quant)
        log = environments.folder_of(engine, self._work) / "worker.log"
        python = environments.python_of(engine, self._work)
        with WorkerProcess(engine, python, folder, quant, _THREADS, log) as worker:
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
