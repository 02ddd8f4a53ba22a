"""The line editor of a chat: Enter sends, Alt-Enter or a trailing backslash begins another line."""

from __future__ import annotations

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.key_binding import KeyBindings

from .chat import COMMANDS


def make_prompt(show_thoughts, **streams) -> PromptSession:
    """show_thoughts(): prints the last answer's reasoning. streams: input and output, where they are not the
    terminal. Pasted text arrives as one piece, line breaks and all; Ctrl-C raises KeyboardInterrupt, Ctrl-D
    in an empty line EOFError. The history ends with the program: nothing of it is written to a disk."""
    keys = KeyBindings()

    @keys.add("enter")
    def send(event):
        buffer = event.current_buffer
        if buffer.document.text.endswith("\\") and buffer.document.is_cursor_at_the_end:
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def another_line(event):
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-t")
    def unfold(_event):
        run_in_terminal(show_thoughts)

    return PromptSession(
        "> ", multiline=True, prompt_continuation="  ", key_bindings=keys, completer=_Completer(),
        complete_while_typing=False, **streams,
    )  # fmt: skip


class _Completer(Completer):
    """Commands, and behind /save and /load files."""

    def __init__(self):
        self._files = PathCompleter(expanduser=True)

    def get_completions(self, document, complete_event):
        text = document.text_before_cursor
        name, blank, path = text.partition(" ")
        if not blank:
            for command, (_, meaning) in COMMANDS.items():
                if f"/{command}".startswith(text):
                    yield Completion(f"/{command}", start_position=-len(text), display_meta=meaning)
        elif COMMANDS.get(name[1:], ("",))[0] == "PATH":
            yield from self._files.get_completions(Document(path), complete_event)
