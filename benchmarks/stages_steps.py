"""The same request on one of the steps that lead from Paddle's dygraph to this runtime.

    python -m benchmarks.stages_steps STEP THREADS FILE.nb CHECKPOINT REPEAT < {"ids": […], "new_tokens": n}

A child of `stages.py`; prints JSON: the greedy tokens with their margins and the seconds of each run, or why
the step cannot run here. Every engine is fed through `session.forward(ids) -> logits [T, vocabulary]`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import NamedTuple, Optional

import numpy as np

# After this many seconds a step is done with fewer runs, or fewer tokens; two at least, for a decode speed.
BUDGET_SECONDS = 60.0


class Step(NamedTuple):
    """name: in the table. engine: how it is opened. memory: bytes needed per byte of the file."""

    name: str
    engine: str
    mode: str = ""
    isa: Optional[str] = None
    memory: float = 1.1


STEPS = {
    "paddle-fp32": Step("Paddle dygraph, fp32", "dygraph", "fp32", memory=5.0),
    "paddle-int8": Step("Paddle dygraph, INT8 weights", "dygraph", "int8", memory=4.0),
    "stock": Step("stock Paddle Lite on the .nb", "stock", memory=4.7),
    "exact": Step("this runtime, exact mode", "native", "exact"),
    "scalar": Step("INT8 activations, scalar", "native", "int8", "scalar"),
    "avx2": Step("AVX2", "native", "int8", "avx2"),
    "best": Step("best kernels of this CPU", "native", "int8"),
    "threads": Step("all threads", "native", "int8"),
}


class Missing(Exception):
    """What a step needs is not on this machine."""


def open_session_maker(stack, step: Step, path: str, spec: str, threads: int):
    """(function that makes an empty session, a context manager; what computes)."""
    from lite_runtime import machine

    machine.require_memory(int(os.path.getsize(path) * step.memory), step.name)
    if step.engine == "native":
        return _native(stack, step, path, threads)
    if step.engine == "stock":
        from edge_kit.stock import StockModel

        model = stack.enter_context(StockModel(path))
        return lambda: contextlib.nullcontext(model.session()), "paddlelite"
    return _dygraph(step, spec, threads)


def _native(stack, step: Step, path: str, threads: int):
    import lite_runtime

    if step.isa and step.isa not in lite_runtime.available_isas():
        raise Missing(f"this CPU has no {step.isa}")
    model = stack.enter_context(
        lite_runtime.load(path, n_threads=threads, n_ctx=2048, mode=step.mode, isa=step.isa)
    )
    return lambda: LastLogits(model), model.info.isa


class LastLogits:
    """A session of the runtime that computes the head for the last token alone."""

    def __init__(self, model):
        self._model, self._session = model, model.session()

    def forward(self, ids) -> np.ndarray:
        return self._model.forward([(self._session, ids, "last")])[0][None]

    def __enter__(self) -> LastLogits:
        return self

    def __exit__(self, *_exception) -> None:
        self._session.close()


def _dygraph(step: Step, spec: str, threads: int):
    try:
        import paddle
    except ImportError:
        raise Missing("this Python has no paddlepaddle: pip install 'edge-kit[export]'") from None
    from edge_kit.export.evaluate import DygraphSession
    from edge_kit.export.tensors import CheckpointTensors, build_decoder

    from benchmarks.nb_checkpoint import open_model

    paddle.base.core.set_num_threads(threads)
    decoder = build_decoder(CheckpointTensors(open_model(spec), step.mode))
    return lambda: contextlib.nullcontext(DygraphSession(decoder)), f"paddlepaddle {paddle.__version__}"


def measure(session, ids: list, new_tokens: int, deadline: float) -> dict:
    """One request, greedy: tokens, the lead of each over the runner-up in logits, seconds."""
    tokens, margins, seconds = [], [], []
    step = ids
    while len(tokens) < new_tokens:
        started = time.perf_counter()
        if len(tokens) >= 2 and started > deadline:
            break
        logits = session.forward(step)[-1]
        token = int(logits.argmax())
        seconds.append(time.perf_counter() - started)
        second, first = np.partition(logits, -2)[-2:]
        tokens.append(token)
        margins.append(float(first - second))
        step = [token]
    return {"tokens": tokens, "margins": margins, "seconds": seconds}


def run(name: str, threads: int, path: str, spec: str, repeat: int, request: dict) -> dict:
    """What this child prints."""
    from lite_runtime.errors import EdgeKitError

    with contextlib.ExitStack() as stack:
        try:
            new_session, engine = open_session_maker(stack, STEPS[name], path, spec, threads)
        except (Missing, EdgeKitError) as error:
            return {"skipped": str(error)}
        with new_session() as session:
            session.forward(request["ids"][:2])  # memory is touched and code is warm
        runs, deadline = [], time.perf_counter() + BUDGET_SECONDS
        while len(runs) < repeat and (not runs or time.perf_counter() < deadline):
            with new_session() as session:
                runs.append(measure(session, request["ids"], request["new_tokens"], deadline))
    return {"engine": engine, "runs": runs}


if __name__ == "__main__":
    name, threads, path, spec, repeat = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Paddle prints too
    report = run(name, int(threads), path, spec, int(repeat), json.load(sys.stdin))
    print(json.dumps(report), file=answers, flush=True)
