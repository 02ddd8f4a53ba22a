"""edge-kit verify: the native runtime on trial, over a fixed text."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import NamedTuple

from lite_runtime.errors import FileFormatError, UsageError

HELP = "compare the native runtime with another engine; exit status 1 outside the gates"


class Gate(NamedTuple):
    """A limit on one field of `edge_kit.metrics.Report`: the most it may be, or the least if `at_least`."""

    metric: str
    limit: float
    at_least: bool = False

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit  # a NaN holds neither


# In exact mode only the order of fp32 sums differs. In int8 mode no bit differs from the executor, and none
# may: a last-bit difference moves an activation to the next of its 255 steps, later layers carry that on, and
# behind the demo's 30 layers it has grown to a KL of 0.003, where a faulty kernel could hide.
SAME_ARITHMETIC = (Gate("largest_difference", 1e-3), Gate("disagreements", 0))
# What quantization may cost.
QUANTIZED = (Gate("perplexity_ratio", 1.015), Gate("mean_kl", 0.013), Gate("top1_agreement", 0.92, True))

# Tokens compared by default: a judge of the same arithmetic needs few, and is slow; what quantization costs
# shows over the whole text only.
_DEFAULT_TOKENS = {"reference": 300, "stock": 300, "checkpoint": None}


def add_arguments(parser) -> None:
    parser.add_argument("file", metavar="FILE", help="a .nb file that edge-kit export wrote")
    parser.add_argument(
        "--against",
        default="reference",
        metavar="ENGINE",
        help="reference: the NumPy executor on the same file (default); stock: Paddle Lite on the same file; "
        "checkpoint:PATH: the fp32 model that the file was exported from",
    )
    parser.add_argument(
        "--mode",
        choices=("int8", "exact"),
        help="arithmetic of the runtime: int8, or exact for stock, which knows no other",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help="taken evenly from the texts (default: 300; the whole text against a checkpoint)",
    )
    parser.add_argument("--text", metavar="FILE", help="a text of yours instead of the kit's fixed one")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args) -> int:
    against, mode, gates = _plan(args.against, args.mode)
    if args.tokens is not None and args.tokens < 6:
        raise UsageError(f"--tokens {args.tokens}: expected at least 6, two for each text")
    started = time.perf_counter()
    digest_holds = _check_digest(args.file)
    report = _compare(args, against, mode)
    results = [(gate, getattr(report, gate.metric)) for gate in gates]
    passed = digest_holds and all(gate.holds(value) for gate, value in results)
    seconds = time.perf_counter() - started
    if args.json:
        print(json.dumps(_as_json(args, mode, digest_holds, report, results, passed, seconds), indent=2))
    else:
        _print_table(args, mode, digest_holds, report, results, passed, seconds)
    return 0 if passed else 1


def _plan(against: str, mode):
    """(engine, mode, gates) of the options."""
    engine = against.partition(":")[0]
    if engine not in ("reference", "stock", "checkpoint") or (engine == "checkpoint") != (":" in against):
        raise UsageError(f"--against {against}: expected reference, stock or checkpoint:PATH")
    if engine == "checkpoint" and against == "checkpoint:":
        raise UsageError("--against checkpoint: names no checkpoint; expected checkpoint:PATH")
    if engine == "stock":
        if mode == "int8":
            raise UsageError("--mode int8 --against stock: Paddle Lite computes exactly; leave --mode out")
        return engine, "exact", SAME_ARITHMETIC
    mode = mode or "int8"
    if engine == "checkpoint":
        return engine, mode, QUANTIZED
    return engine, mode, SAME_ARITHMETIC


def _check_digest(path) -> bool:
    """Whether the model's bytes are those that the export wrote."""
    from edge_kit.nb.bundle import model_digest, read_manifest

    written = read_manifest(path).get("model_digest")
    if not written:
        raise FileFormatError(f"{path}: its manifest has no model_digest. Export the model again.")
    return written == model_digest(path)


def _compare(args, against: str, mode: str):
    import lite_runtime
    from edge_kit.metrics import Comparison, compare_text

    with contextlib.ExitStack() as stack:
        model = stack.enter_context(lite_runtime.load(args.file, mode=mode))
        limit = _DEFAULT_TOKENS[against] if args.tokens is None else args.tokens
        texts = _token_ids(model, args.text, limit)
        new_session = _reference(stack, args, against, mode, model)
        comparison = Comparison()
        done, total = 0, sum(len(ids) for ids in texts)
        for ids in texts:
            for n in compare_text(comparison, new_session(), model.session(), ids):
                done += n
                _show_progress(done, total)
        return comparison.report()


def _token_ids(model, path, limit):
    """One list of ids per text, with `limit` tokens in all, none longer than the context."""
    from edge_kit.fixed_text import fixed_texts, read_text

    texts = [read_text(path)] if path else fixed_texts()
    sequences = []
    for i, text in enumerate(texts):
        ids = model.text.encode(text)[: model.info.n_ctx]
        share = len(ids) if limit is None else (limit + i) // len(texts)
        sequences.append(ids[:share])
    return sequences


def _reference(stack, args, against: str, mode: str, model):
    """A function that makes a fresh session of the engine that is believed."""
    if against == "reference":
        from edge_kit.executor import Executor

        return Executor(args.file, mode).session
    if against == "stock":
        from edge_kit.stock import StockModel

        return stack.enter_context(StockModel(args.file)).session
    from edge_kit.export.checkpoint import open_checkpoint
    from edge_kit.export.evaluate import DygraphSession
    from edge_kit.export.tensors import CheckpointTensors, build_decoder

    decoder = build_decoder(CheckpointTensors(open_checkpoint(args.against.partition(":")[2]), "fp32"))
    if decoder.config.vocab_size != model.info.n_vocab:
        raise UsageError(
            f"{args.against}: a vocabulary of {decoder.config.vocab_size}, and {args.file} has one of "
            f"{model.info.n_vocab}; give the checkpoint that the file was exported from"
        )
    return lambda: DygraphSession(decoder)


def _show_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\r" if done < total else "\n"
        print(f"compared {done} of {total} tokens", end=end, file=sys.stderr, flush=True)


def _as_json(args, mode, digest_holds, report, results, passed, seconds) -> dict:
    return {
        "file": os.fspath(args.file),
        "against": args.against,
        "mode": mode,
        "model_digest": "holds" if digest_holds else "differs",
        "metrics": report.as_dict(),
        "gates": [
            {
                "metric": gate.metric,
                "at_least" if gate.at_least else "at_most": gate.limit,
                "value": value,
                "holds": gate.holds(value),
            }
            for gate, value in results
        ],
        "passed": passed,
        "seconds": round(seconds, 3),
    }


def _print_table(args, mode, digest_holds, report, results, passed, seconds) -> None:
    limits = {gate.metric: (gate, value) for gate, value in results}
    print(f"{args.file}: native runtime, {mode} mode, against {args.against}; {seconds:.0f} s")
    print(f"  {'model digest':22} {'holds' if digest_holds else 'DIFFERS':>12}")
    for metric, value in report.as_dict().items():
        shown = f"{value:d}" if isinstance(value, int) else f"{value:.6g}"
        verdict = ""
        if metric in limits:
            gate = limits[metric][0]
            sign = ">=" if gate.at_least else "<="
            verdict = f"  {sign} {gate.limit:g}: {'ok' if gate.holds(value) else 'OUTSIDE'}"
        print(f"  {metric.replace('_', ' '):22} {shown:>12}{verdict}")
    print("passed" if passed else "failed")
