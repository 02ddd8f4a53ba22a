"""From the dygraph decoder to a static Paddle program, without allocating a weight."""

from __future__ import annotations

import os
import sys

# paddle_lite_opt reads the ProgramDesc of the old IR only; Paddle takes the flag when it is imported.
os.environ["FLAGS_enable_pir_api"] = "0"

from lite_runtime.errors import UnsupportedError

from .paddle_program import ParsedProgram, parse_program


def require_old_ir() -> None:
    """UnsupportedError if Paddle was imported before this module could switch its new IR off."""
    import paddle

    if paddle.get_flags("FLAGS_enable_pir_api")["FLAGS_enable_pir_api"]:
        raise UnsupportedError(
            "Paddle was imported with its PIR enabled, whose programs Paddle Lite cannot read; "
            "set FLAGS_enable_pir_api=0 before `import paddle`, or run the exporter in a fresh process"
        )


def trace_program(config, quant: str) -> ParsedProgram:
    """The program of `Decoder(config, quant)`, with feed and fetch ops and the decoder's parameter names.

    Inputs: input_ids, positions, attention_mask, past_key_0, past_value_0, …; outputs in the order of
    `Decoder.forward`.
    """
    require_old_ir()
    import paddle
    from paddle.static import InputSpec

    from .decoder import Decoder

    with paddle.LazyGuard():
        model = Decoder(config, quant)
    model.eval()
    cache_shape = [config.n_kv_heads, -1, config.head_dim]
    specs = [
        InputSpec([-1], "int64", "input_ids"),
        InputSpec([-1], "int64", "positions"),
        InputSpec([-1, -1], "float32", "attention_mask"),
        [
            InputSpec(cache_shape, "float32", f"past_{kind}_{i}")
            for i in range(config.n_layers)
            for kind in ("key", "value")
        ],
    ]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 10_000))
    try:
        static = paddle.jit.to_static(model, input_spec=specs, full_graph=True)
        concrete = static.forward.concrete_program
    finally:
        sys.setrecursionlimit(limit)
    feeds = [v for v in paddle.utils.flatten(concrete.inputs) if hasattr(v, "desc") and not v.persistable]
    fetches = paddle.utils.flatten(concrete.outputs)
    paddle.enable_static()
    try:
        program = paddle.static.normalize_program(concrete.main_program, feeds, fetches)
    finally:
        paddle.disable_static()
    # Paddle names parameters by a counter of the process; the file has the decoder's own names.
    names = {parameter.name: name for name, parameter in model.named_parameters()}
    return parse_program(program.desc.serialize_to_string(), names)
