"""edge-kit inspect: what a `.nb` file holds."""

from __future__ import annotations

import json

HELP = "show a .nb file's header, program, tensors and manifest"


def add_arguments(parser) -> None:
    parser.add_argument("file", metavar="FILE", help="a .nb file")
    parser.add_argument("--tensors", action="store_true", help="list every tensor with its place in the file")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(args) -> int:
    from edge_kit.nb.inspect import describe, render

    found = describe(args.file)
    print(json.dumps(found, indent=2, ensure_ascii=False) if args.json else render(found, args.tensors))
    return 0
