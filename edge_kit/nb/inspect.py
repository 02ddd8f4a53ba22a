"""What a `.nb` file holds, as a dict and as text."""

from __future__ import annotations

import os
from collections import Counter

from edge_kit.nb.bundle import MANIFEST, read_bundle, read_manifest
from edge_kit.nb.format import Target
from edge_kit.nb.program import Program
from edge_kit.nb.reader import NbFile


def describe(path) -> dict:
    """Header, program, tensors, bytes per element type, alignment, bundle and manifest of a file."""
    with NbFile(path) as model:
        tensors = [dict(tensor._asdict(), aligned=tensor.aligned) for tensor in model.tensors.values()]
        dtype_bytes: Counter = Counter()
        for tensor in model.tensors.values():
            dtype_bytes[tensor.dtype] += tensor.nbytes
        total = sum(dtype_bytes.values())
        has_bundle = model.size > model.params_end
        return {
            "path": os.fspath(path),
            "file_bytes": model.size,
            "meta_version": model.meta_version,
            "opt_version": model.opt_version,
            "paddle_version": _paddle_version(model.program.version),
            "program_bytes": model.program_span[1] - model.program_span[0],
            "target": _target(model.program),
            "inputs": _variables(model.program, model.program.inputs),
            "outputs": _variables(model.program, model.program.outputs),
            "op_counts": dict(sorted(Counter(op.type for op in model.program.ops).items())),
            "tensors": tensors,
            "parameter_bytes": total,
            "dtype_bytes": dict(dtype_bytes.most_common()),
            "int8_share": dtype_bytes["int8"] / total if total else 0.0,
            "unaligned_tensors": sum(not tensor["aligned"] for tensor in tensors),
            "bundle": {name: len(data) for name, data in read_bundle(path).items()} if has_bundle else None,
            "manifest": read_manifest(path) if has_bundle else None,
        }


def _paddle_version(number: int) -> str:
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"


def _target(program: Program) -> str:
    """The target of the kernel picks: x86, arm, both, or host if nothing else is picked."""
    numbers = {op.kernel.split("/")[2] for op in program.ops if op.kernel.count("/") == 4}
    names = {str(int(target)): target.name.lower() for target in Target}
    found = sorted(names.get(number, number) for number in numbers if number != str(int(Target.HOST)))
    return "+".join(found) or "host"


def _variables(program: Program, names: list) -> list:
    known = {var.name: var for var in program.vars}
    found = []
    for name in names:
        var = known.get(name)
        found.append({"name": name, "dtype": var and var.dtype, "shape": var and var.shape})
    return found


def render(found: dict, with_tensors: bool = False) -> str:
    """The text form of `describe`; with_tensors adds one line per tensor."""
    n_ops = sum(found["op_counts"].values())
    lines = [
        found["path"],
        f"  file         {_size(found['file_bytes'])}, meta version {found['meta_version']}",
        f"  written by   opt {found['opt_version']}, Paddle {found['paddle_version']}",
        f"  target       {found['target']}",
        f"  program      {n_ops} ops, {_size(found['program_bytes'])}",
        f"  ops          {', '.join(f'{name} {count}' for name, count in found['op_counts'].items())}",
    ]
    for side in ("inputs", "outputs"):
        lines.append(f"  {side:12} {_short([_signature(var) for var in found[side]])}")
    lines.append(
        f"  tensors      {len(found['tensors'])}, {_size(found['parameter_bytes'])}, "
        + (f"{found['unaligned_tensors']} not aligned" if found["unaligned_tensors"] else "all aligned")
        + " to 64 bytes"
    )
    for dtype, nbytes in found["dtype_bytes"].items():
        share = nbytes / found["parameter_bytes"] if found["parameter_bytes"] else 0.0
        lines.append(f"    {dtype:10} {_size(nbytes):>12}  {share:8.3%}")
    if found["bundle"] is None:
        lines.append("  bundle       none")
    else:
        files = [f"{name} ({_size(size)})" for name, size in found["bundle"].items()]
        lines.append(f"  bundle       {', '.join(files)}")
        lines.append(f"  {MANIFEST}")
        shown = dict(found["manifest"])
        if "chat_format" in shown:
            shown["chat_format"] = describe_chat_format(shown["chat_format"])
        lines += [f"    {key:20} {_short([str(value)], 90)}" for key, value in shown.items()]
    if with_tensors:
        width = max((len(tensor["name"]) for tensor in found["tensors"]), default=0)
        for tensor in found["tensors"]:
            note = "" if tensor["aligned"] else ", not aligned"
            lines.append(
                f"  {tensor['name']:{width}}  {tensor['dtype']:8} {str(list(tensor['shape'])):24} "
                f"{tensor['nbytes']:>12} bytes at {tensor['offset']}{note}"
            )
    return "\n".join(lines)


def describe_chat_format(found) -> str:
    """In words: whether the native core can render messages by a manifest's `chat_format`, None for none."""
    if found is None:
        return "none"
    if not isinstance(found, dict) or found.get("status") not in ("reduced", "not_reduced"):
        return "damaged"
    return "reduced" if found["status"] == "reduced" else f"not reduced: {found.get('reason')}"


def _signature(var: dict) -> str:
    return f"{var['name']} {var['dtype']} {var['shape']}"


def _short(parts: list, limit: int = 240) -> str:
    """The parts in one line, as many as fit."""
    text = ""
    for i, part in enumerate(parts):
        if text and len(text) + len(part) > limit:
            return f"{text}; {len(parts) - i} more"
        text += ("; " if text else "") + part
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _size(nbytes: int) -> str:
    """Decimal units, as the README's figures."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes} bytes"
