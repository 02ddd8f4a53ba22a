"""The verbs of the command line, one module each.

A module has HELP (one line), add_arguments(parser) and run(args) -> exit status. Its imports at the top are
light: what needs Paddle, a tokenizer or the native library is imported in run.
"""

from __future__ import annotations
