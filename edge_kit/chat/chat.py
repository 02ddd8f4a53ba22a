"""A conversation that is typed: questions, commands, Ctrl-C. How it is read and shown is the front's matter.

A front has
    interactive     whether somebody types, whom Ctrl-C shall not throw out
    read()          the next message; EOFError after the last one
    show(items)     an answer as it comes; gives its last ChatItem
    say(text)       what a command was asked for
    notice(text)    anything else: speeds, errors
    keys            what /help says of the keyboard
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import unicodedata

from edge_kit.commands import generation
from lite_runtime import machine
from lite_runtime.conversation import Conversation
from lite_runtime.errors import EdgeKitError, UsageError, did_you_mean

GREETING = "Ctrl-C stops an answer, Ctrl-D ends the conversation, /help lists the commands."
COMMANDS = {  # name: (argument, what it does)
    "reset": ("", "forget the conversation; the system message stays"),
    "system": ("TEXT", "another system message, from the next question on; without TEXT: show it"),
    "save": ("PATH", "write the conversation and its cache"),
    "load": ("PATH", "go on with a saved conversation instead of this one"),
    "thinking": ("", "show what the model thought before its last answer"),
    "stats": ("", "tokens, speeds, context and memory"),
    "help": ("", "show this"),
    "exit": ("", "end the program"),
}
_COMMAND = re.compile(r"/([A-Za-z]+)(?:\s+(.*))?", re.DOTALL)


def clean(text: str) -> str:
    """`text` without what could control a terminal: of the control characters only line breaks and tabs."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) != "Cc")


class Chat:
    """A conversation and its counts. `close` frees its cache."""

    def __init__(self, model, file: str, system, options: dict, limits: dict):
        """file: name of the model's. options: of `Conversation.ask`. limits: of `Conversation`."""
        self._model = model
        self._file = file
        self._options = options
        self._limits = limits
        self._last = None  # ChatItem
        self._counts = dict.fromkeys(("answers", "prompt", "cached", "new", "thinking"), 0)
        self.conversation = Conversation(model, system, **limits)

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *_exception) -> None:
        self.conversation.close()

    def run(self, front) -> None:
        """Until the messages end, or /exit."""
        going_on = True
        while going_on:
            try:
                going_on = self.handle(front.read(), front)
            except EOFError:
                return
            except KeyboardInterrupt:
                if not front.interactive:
                    raise

    def handle(self, text: str, front) -> bool:
        """Sends a message or runs a command; False after /exit. A user's mistake is one notice."""
        command = _COMMAND.fullmatch(text.rstrip())
        name, argument = (command.group(1).lower(), command.group(2) or "") if command else ("", "")
        try:
            if any("\ud800" <= character <= "\udfff" for character in text):
                front.notice("[not sent: the line is not UTF-8]")
            elif name == "exit" and not argument:
                return False
            elif command:
                front.say(self._command(name, argument.strip()))
                if name == "help":
                    front.say(front.keys)
            elif text.strip():
                self._ask(text, front)
        except EdgeKitError as error:
            front.notice(f"[{' '.join(str(error).split())}]")
        return True

    def thoughts(self) -> str:
        """The reasoning of the last answer, or that there is none."""
        answers = [message for message in self.conversation.messages if message["role"] == "assistant"]
        return answers[-1:] and answers[-1].get("reasoning_content") or "[no thinking before the last answer]"

    def _ask(self, text: str, front) -> None:
        conversation = self.conversation
        with _ctrl_c_calls(conversation.cancel) if front.interactive else contextlib.nullcontext() as pressed:
            try:
                items = conversation.ask(text, **self._options)
            except EdgeKitError as error:
                raise UsageError(f"not sent: {error}") from None
            if pressed:
                conversation.cancel()
            last = front.show(generation.stream(items, conversation.cancel))
        front.notice(generation.speeds(last))
        self._last = last
        values = (1, last.n_prompt, last.n_cached, last.n_generated, last.n_reasoning)
        for name, value in zip(self._counts, values):
            self._counts[name] += value

    def _command(self, name: str, argument: str) -> str:
        if name not in COMMANDS:
            raise UsageError(
                f"unknown command /{name}; /help lists what there is, a space in front sends it as text"
                + did_you_mean(f"/{name}", [f"/{other}" for other in COMMANDS])
            )
        wanted = COMMANDS[name][0]
        if argument and not wanted:
            raise UsageError(f"/{name} takes nothing behind it, found '{argument}'")
        if wanted == "PATH" and not argument:
            raise UsageError(f"/{name} needs a PATH")
        return getattr(self, f"_{name}")(*[argument] if wanted else ())

    def _reset(self) -> str:
        self.conversation.reset()
        return "[the conversation begins anew]"

    def _system(self, text: str) -> str:
        messages = self.conversation.messages
        rest = [message for message in messages if message["role"] != "system"]
        if text:
            self.conversation.messages = [{"role": "system", "content": text}, *rest]
            return "[the system message is another one from now on]"
        texts = [message["content"] for message in messages if message["role"] == "system"]
        return "\n".join(texts) or "[no system message]"

    def _save(self, path: str) -> str:
        path = os.path.expanduser(path)
        self.conversation.save(path)
        return f"[saved: {path} and {path}.session]"

    def _load(self, path: str) -> str:
        path = os.path.expanduser(path)
        loaded = Conversation.load(self._model, path, **self._limits)
        self.conversation.close()
        self.conversation = loaded
        n_questions = sum(message["role"] == "user" for message in loaded.messages)
        return f"[loaded: {path}, questions: {n_questions}]"

    def _thinking(self) -> str:
        return self.thoughts()

    def _stats(self) -> str:
        info, counts = self._model.info, self._counts
        n_messages, resident = len(self.conversation.messages), machine.rss()
        lines = [
            f"model     {self._file}: kernel {info.isa}, {info.n_threads} threads",
            f"context   {len(self.conversation.session):,} of {info.n_ctx:,} tokens, {n_messages} messages",
            f"answers   {counts['answers']}: {counts['prompt']:,} prompt tokens, {counts['cached']:,} known; "
            f"{counts['new']:,} new, {counts['thinking']:,} of them thinking",
        ]
        if self._last is not None:
            lines.append(f"last one  first token after {self._last.first_token_seconds:.2f} s")
            lines.append(f"          {generation.speeds(self._last)}")
        if resident is not None:
            lines.append(f"memory    {resident / 1e9:.2f} GB resident")
        return "\n".join(lines)

    def _help(self) -> str:
        width = max(len(f"/{name} {argument}") for name, (argument, _) in COMMANDS.items())
        lines = [f"{f'/{name} {argument}':{width}}  {text}" for name, (argument, text) in COMMANDS.items()]
        return "\n".join(lines)


@contextlib.contextmanager
def _ctrl_c_calls(cancel):
    """Ctrl-C, however often, ends the answer; the list given holds something if it came before its stream."""
    pressed = []

    def press(_signal, _frame):
        pressed.append(True)
        cancel()

    previous = signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, previous)
