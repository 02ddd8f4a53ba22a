"""From the dygraph decoder to a static Paddle program, without allocating a weight."""

from __future__ import annotations

import sys

from .paddle_program import ParsedProgram, parse_program


def trace_program(config, quant: str) -> ParsedProgram:
    """The program of `Decoder(config, quant)`, with feed and fetch ops and the decoder's parameter names.

    Inputs: input_ids, positions, attention_mask, past_key_0, past_value_0, …; outputs in the order of
    `Decoder.forward`.
    """
    import paddle
    from paddle.pir_utils import DygraphOldIrGuard
    from paddle.static import InputSpec

    from . import paddle_signals
    from .decoder import Decoder

    paddle_signals.restore()
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
        # paddle_lite_opt reads programs of the old IR only.
        with DygraphOldIrGuard():
            with paddle.LazyGuard():
                model = Decoder(config, quant)
            model.eval()
            serialized = _serialize(paddle.jit.to_static(model, input_spec=specs, full_graph=True))
    finally:
        sys.setrecursionlimit(limit)
    # Paddle names parameters by a counter of the process; the file has the decoder's own names.
    names = {parameter.name: name for name, parameter in model.named_parameters()}
    return parse_program(serialized, names)


def _serialize(static) -> bytes:
    import paddle

    concrete = static.forward.concrete_program
    feeds = [v for v in paddle.utils.flatten(concrete.inputs) if hasattr(v, "desc") and not v.persistable]
    paddle.enable_static()
    try:
        program = paddle.static.normalize_program(
            concrete.main_program, feeds, paddle.utils.flatten(concrete.outputs)
        )
    finally:
        paddle.disable_static()
    return program.desc.serialize_to_string()
