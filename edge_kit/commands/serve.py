"""`edge-kit serve`: a model over HTTP, for OpenAI's clients and for a browser."""

from __future__ import annotations

import os

from lite_runtime.errors import UsageError

from . import generation

HELP = "serve a model over HTTP, with a web page"
KEY_VARIABLE = "EDGE_KIT_API_KEY"


def add_arguments(parser) -> None:
    generation.add_model_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="default: 127.0.0.1")
    parser.add_argument(
        "--port", type=generation.whole, default=8000, metavar="N", help="0 = a free one; default: 8000"
    )
    parser.add_argument("--name", metavar="NAME", help="of the model; default: the one in the file")
    access = parser.add_argument_group("access")
    access.add_argument(
        "--api-key", metavar="KEY", help=f"what clients must send as a bearer token; default: ${KEY_VARIABLE}"
    )
    access.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name that clients may call this server by, beside addresses and localhost; * = any",
    )
    access.add_argument("--log-prompts", action="store_true", help="log what is asked and answered, too")
    limits = parser.add_argument_group("limits")
    for name, kind, default, text in (
        ("max-batch", generation.positive, 8, "requests that run together"),
        ("prefill-chunk", generation.positive, 64, "tokens of prompts in one step"),
        ("max-queue", generation.whole, 64, "requests that may wait"),
        ("max-prompt-tokens", generation.positive, None, "what the context holds"),
        ("max-new-tokens", generation.positive, None, "what the context holds"),
        ("thinking-budget", generation.whole, None, "most tokens of reasoning; default: any number"),
        ("deadline", float, 600.0, "seconds until an answer is ended"),
        ("max-body-mb", float, 1.0, "of a request"),
        ("cache-mb", float, 512.0, "of conversations kept for their next turns"),
        ("answer-cache-mb", float, 0.0, "of greedy answers kept to be given again; 0 = none"),
        ("grace", float, 30.0, "seconds that running answers get at the end"),
    ):
        text += f"; default: {default:g}" if default is not None else ""
        metavar = "X" if kind is float else "N"
        limits.add_argument(f"--{name}", type=kind, default=default, metavar=metavar, help=text)


def run(args) -> int:
    try:
        from edge_kit.server.run import serve
        from edge_kit.server.settings import Settings
    except ModuleNotFoundError as error:
        raise UsageError(f"serving needs {error.name}: pip install 'edge-kit[serve]'") from None
    settings = Settings(
        file=args.file,
        name=args.name,
        api_key=os.environ.get(KEY_VARIABLE) if args.api_key is None else args.api_key,
        hosts=tuple(args.allow_host),
        threads=args.threads,
        n_ctx=args.n_ctx,
        kv_dtype=args.kv_dtype,
        max_batch=args.max_batch,
        prefill_chunk=args.prefill_chunk,
        max_queue=args.max_queue,
        deadline=args.deadline,
        max_prompt_tokens=args.max_prompt_tokens,
        max_new_tokens=args.max_new_tokens,
        thinking_budget=args.thinking_budget,
        max_body_mb=args.max_body_mb,
        cache_mb=args.cache_mb,
        answer_cache_mb=args.answer_cache_mb,
        log_prompts=args.log_prompts,
    )
    serve(settings, args.host, args.port, args.grace)
    return 0
