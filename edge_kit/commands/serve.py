"""`edge-kit serve`: a model over HTTP, for OpenAI's clients and for a browser."""

from __future__ import annotations

import dataclasses
import math
import os

from edge_kit.server.settings import KEY_VARIABLE, Settings
from lite_runtime.errors import UsageError

from . import generation

HELP = "serve a model over HTTP, with a web page"

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Settings)}
_LIMITS = {  # name: (type, what it limits)
    "max_batch": (generation.positive, "requests that run together"),
    "prefill_chunk": (generation.positive, "tokens of prompts in one step"),
    "max_queue": (generation.whole, "requests that may wait"),
    "max_prompt_tokens": (generation.positive, "most tokens of a prompt; default: what the context holds"),
    "max_new_tokens": (
        generation.positive,
        "most tokens of an answer; default: the model's generation_config.json, else what the context holds",
    ),
    "thinking_budget": (
        generation.whole,
        "most tokens of reasoning where a request does not say; default: any number",
    ),
    "deadline": (float, "seconds until an answer is ended"),
    "max_body_mb": (float, "of a request"),
    "cache_mb": (float, "of conversations kept for their next turns"),
    "answer_cache_mb": (float, "of greedy answers kept to be given again; 0 = none"),
}


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
        dest="hosts",
        action="append",
        default=[],
        metavar="NAME",
        help="a name that clients may call this server by, beside addresses and localhost; * = any",
    )
    access.add_argument("--log-prompts", action="store_true", help="log what is asked and answered, too")
    limits = parser.add_argument_group("limits")
    for name, (kind, text) in _LIMITS.items():
        default = _DEFAULTS[name]
        limits.add_argument(
            "--" + name.replace("_", "-"),
            type=kind,
            default=default,
            metavar="X" if kind is float else "N",
            help=text if default is None else f"{text}; default: {default:g}",
        )
    limits.add_argument(
        "--grace",
        type=float,
        default=30.0,
        metavar="X",
        help="seconds that running answers get at the end; default: 30",
    )


def run(args) -> int:
    if not 0 <= args.grace < math.inf:
        raise UsageError(f"--grace {args.grace}, expected seconds, 0 or more")
    try:
        from edge_kit.server.run import serve
    except ModuleNotFoundError as error:
        raise UsageError(
            f"serving needs {error.name}: install edge-kit with its extra 'serve' "
            "(in a checkout: pip install -e '.[serve]')"
        ) from None
    given = {name: getattr(args, name) for name in _DEFAULTS}
    given["hosts"] = tuple(args.hosts)
    if args.api_key is None:
        given["api_key"] = os.environ.get(KEY_VARIABLE)
    serve(Settings(**given), args.host, args.port, args.grace)
    return 0
