"""The pass over the optimized program that both writers share."""

from __future__ import annotations

from edge_kit.nb.program import Program, Var

# Names that no Paddle program gives a variable of its own.
_SCRATCH = {"cast": "weight.cast", "transpose2": "weight.transposed", "reshape2": "weight.rows"}


def share_weight_scratch(program: Program) -> None:
    """Lets all expanded weights (cast, transposed, reshaped) use one variable per op.

    The stock runtime keeps the output of every cast of a parameter: on the flagship 7 GB of fp32. Each
    expanded weight is read once, by the matmul that follows, so one set of variables serves all of them.
    """
    parameters = {var.name for var in program.vars if var.persistable}
    renamed: dict[str, str] = {}
    for op in program.ops:
        source = op.inputs["X"][0] if op.inputs.get("X") else ""
        expands = op.type == "cast" and source in parameters or op.type in _SCRATCH and source in renamed
        for parameter, names in op.inputs.items():
            op.inputs[parameter] = [renamed.get(name, name) for name in names]
        for names in op.outputs.values():
            for name in names:
                renamed.pop(name, None)  # the name stands for another value from here on
        if expands:
            renamed[op.outputs["Out"][0]] = _SCRATCH[op.type]
            op.outputs["Out"] = [_SCRATCH[op.type]]
    _keep_used_variables(program)


def _keep_used_variables(program: Program) -> None:
    """Drops variables that no op names, adds those that it names anew (fp32, any shape)."""
    used = {
        n for op in program.ops for side in (op.inputs, op.outputs) for names in side.values() for n in names
    }
    program.vars = [var for var in program.vars if var.name in used]
    declared = {var.name for var in program.vars}
    program.vars += [
        Var(name, dtype="float32", shape=[-1, -1]) for name in _SCRATCH.values() if name in used - declared
    ]
