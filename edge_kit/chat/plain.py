"""Chat line by line, for pipes and for machines without prompt_toolkit and rich: text and nothing else."""

from __future__ import annotations

import contextlib
import sys

from .chat import GREETING, clean

PROMPT = "> "


class PlainFront:
    """Answers and what commands say go to stdout, all else to stderr."""

    keys = "A \\ at the end of a line begins another one. Ctrl-C stops an answer, Ctrl-D ends."

    def __init__(self):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
        self.interactive = sys.stdin.isatty()
        if self.interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  gives `input` editing and a history
            self.notice(GREETING)

    def read(self) -> str:
        lines = [self._line(PROMPT)]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            with contextlib.suppress(EOFError):  # what was begun counts
                lines.append(self._line("  "))
        return "\n".join(lines)

    def show(self, items):
        """Reasoning and answer, an empty line between them."""
        thought, item = False, None
        for item in items:
            thought = thought or bool(item.reasoning)
            gap = "\n\n" if thought and item.content else ""
            thought = thought and not item.content
            print(clean(item.reasoning + gap + item.content), end="", flush=True)
        print(flush=True)
        return item

    def say(self, text: str) -> None:
        print(clean(text), flush=True)

    def notice(self, text: str) -> None:
        print(clean(text), file=sys.stderr, flush=True)

    def _line(self, prompt: str) -> str:
        if self.interactive and not sys.stdout.isatty():
            print(prompt, end="", file=sys.stderr, flush=True)
        try:
            return input(prompt if self.interactive and sys.stdout.isatty() else "")
        except (EOFError, KeyboardInterrupt):
            if self.interactive:  # the cursor stands behind the prompt
                self.notice("")
            raise
