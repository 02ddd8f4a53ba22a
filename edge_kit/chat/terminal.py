"""Chat in a terminal: a line editor with history, thinking that folds, Ctrl-C. Needs prompt_toolkit and rich.

While the model thinks, its last lines are shown dimmed; when it stops they give way to one line. What the
model writes is text: its control characters are left out, and no markup in it is obeyed.
"""

from __future__ import annotations

import contextlib
import sys
import termios
import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from .chat import GREETING, clean
from .prompt import make_prompt

THINKING_LINES = 8  # at most, of what is being thought
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_HINT = "; Ctrl-T or /thinking shows it"


class TerminalFront:
    """All goes to stdout."""

    interactive = True
    keys = (
        "Enter sends, Alt-Enter or a \\ at the end begins another line, Up shows earlier messages, "
        "Tab completes.\n"
        "Ctrl-C stops an answer or clears the line, Ctrl-T shows the thinking, Ctrl-D ends."
    )

    def __init__(self, thoughts):
        """thoughts(): the reasoning to show when it is asked for by Ctrl-T."""
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._prompt = make_prompt(lambda: self.say(thoughts()))
        self._hint = _HINT
        self.notice(GREETING)

    def read(self) -> str:
        return self._prompt.prompt()

    def show(self, items):
        """Waiting and thinking in lines that go away again, then the answer."""
        item, column_0 = None, True
        with _no_echo():
            with _Thinking(self._console) as thinking:
                for item in items:
                    thinking.add(item)
                    if item.content:
                        break
            if thinking.text:
                self.notice(f"{thinking.summary()}{self._hint}")
                self._hint = ""
            while item is not None:
                content = clean(item.content)
                self._console.file.write(content)
                self._console.file.flush()
                column_0 = content.endswith("\n") if content else column_0
                last, item = item, next(items, None)
        if not column_0:
            self.say("")
        return last

    def say(self, text: str) -> None:
        self._console.print(Text(clean(text)), soft_wrap=True)

    def notice(self, text: str) -> None:
        self._console.print(Text(clean(text), style="dim"), soft_wrap=True)


class _Thinking:
    """The lines at the end of the screen until an answer begins; they go when the block ends."""

    def __init__(self, console):
        self._console = console
        self._began = self._ended = time.perf_counter()
        self._n_tokens = 0
        self.text = ""
        self._live = Live(
            console=console, get_renderable=self._lines, transient=True, refresh_per_second=8,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip

    def __enter__(self) -> _Thinking:
        # Lines that are cut at the edge: a terminal and rich may differ on how wide an emoji is, and a line
        # that wrapped would leave a piece of itself behind.
        self._console.file.write(_NO_WRAP)
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_exception) -> None:
        self._live.stop()
        self._console.file.write(_WRAP)
        self._console.file.flush()

    def add(self, item) -> None:
        if item.reasoning:
            self._ended = time.perf_counter()
            self._began = self._began if self.text else self._ended
        self.text += clean(item.reasoning)
        self._n_tokens = item.n_reasoning

    def summary(self) -> str:
        return f"thought for {self._ended - self._began:.1f} s, {self._n_tokens} tokens"

    def _lines(self) -> Text:
        seconds = time.perf_counter() - self._began
        if not self.text:
            return Text(f"reading, {seconds:.0f} s", style="dim", no_wrap=True, overflow="crop")
        width, height = self._console.size
        n_lines = max(0, min(THINKING_LINES, height - 2))
        tail = Text(self.text[-width * (n_lines + 1) :].expandtabs(4), style="dim")
        lines = tail.wrap(self._console, width)[-n_lines:] if n_lines else []
        head = Text(f"thinking, {seconds:.0f} s, {self._n_tokens} tokens", style="dim italic")
        return Text("\n", no_wrap=True, overflow="crop").join([head, *lines])


@contextlib.contextmanager
def _no_echo():
    """What is typed meanwhile waits for the next prompt and does not show up amid the answer."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    quiet = before[:3] + [before[3] & ~termios.ECHO] + before[4:]
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
