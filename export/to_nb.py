#!/usr/bin/env python3
"""Exports a checkpoint to one `.nb` file: `python export/to_nb.py --model … --target arm`.

The same code as `edge-kit export`.
"""

from __future__ import annotations

import json
import os
import sys

if __name__ == "__main__" and not __package__:  # run as a file from a checkout
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from edge_kit.cli import main

    sys.exit(main(["export", *sys.argv[1:]]))

from edge_kit import targets
from edge_kit.nb.inspect import describe_chat_format

from . import requirements

HELP = "export a checkpoint to one .nb file"


def add_arguments(parser) -> None:
    parser.add_argument(
        "--model",
        default="demo",
        help="a Hugging Face folder, a .gguf file, random:NAME, or demo (SmolLM2-135M-Instruct, the default)",
    )
    parser.add_argument(
        "--target", default=targets.default(), choices=targets.names(), help="default: this machine's"
    )
    parser.add_argument("--quant", default="int8", choices=["int8", "fp32"])
    parser.add_argument(
        "--optimizer",
        default="auto",
        choices=["auto", "paddlelite", "builtin"],
        help="auto takes paddle_lite_opt where it is installed, else the built-in writer",
    )
    parser.add_argument("--out", metavar="FILE", help="default: MODEL.TARGET.nb in the current folder")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args) -> int:
    requirements.check()
    from .pipeline import export_model
    from .progress import Progress

    summary = export_model(
        args.model, args.target, args.quant, args.optimizer, args.out, Progress(quiet=args.json)
    )
    if args.json:
        print(json.dumps(summary.to_dict(), indent=2))
    else:
        _print_summary(summary)
    return 0


def _print_summary(summary) -> None:
    if summary.errors:
        print("largest quantization error per tensor, as a share of its largest value:")
        for name, error in summary.errors.items():
            print(f"  {error:.5f}  {name}")
    print(
        f"wrote {summary.out}: {summary.file_bytes / 1e6:.1f} MB, {summary.parameters / 1e6:.1f} M parameters"
    )
    print(
        f"  target {summary.target}, {summary.quant}, optimizer {summary.optimizer}, "
        f"int8 share {summary.int8_share:.2%}, {sum(summary.seconds.values()):.1f} s, "
        f"peak memory {summary.peak_rss_bytes / 1e9:.2f} GB"
    )
    print(f"  chat template {describe_chat_format(summary.chat_format)}")
    for warning in summary.warnings:
        print(f"warning: {warning}", file=sys.stderr)
