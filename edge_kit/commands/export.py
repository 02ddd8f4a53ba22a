"""`edge-kit export`: the exporter, whose code is export/to_nb.py."""

from __future__ import annotations

HELP = "export a checkpoint to one .nb file"


def add_arguments(parser) -> None:
    from edge_kit.export import to_nb

    to_nb.add_arguments(parser)


def run(args) -> int:
    from edge_kit.export import to_nb

    return to_nb.run(args)
