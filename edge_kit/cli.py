"""The command line: `edge-kit COMMAND …`. Errors are one line and exit status 2.

A command's module is imported only when it is called, so running a model needs nothing that exporting needs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
import threading

import edge_kit
from lite_runtime.errors import EdgeKitError, UsageError, did_you_mean

COMMANDS = ("export", "run", "chat", "serve", "inspect", "verify", "bench", "profile", "plan", "doctor")


class Parser(argparse.ArgumentParser):
    """argparse with errors as UsageError, and the closest match for what was mistyped."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def parse_args(self, args=None, namespace=None):
        arguments = sys.argv[1:] if args is None else list(args)
        # Before argparse's own pass, which would first complain of whatever the mistyped option left missing.
        for argument in arguments[: arguments.index("--") if "--" in arguments else None]:
            name = argument.split("=", 1)[0]
            if name.startswith("--") and name not in self._option_string_actions:
                raise UsageError(f"unknown option {name}{did_you_mean(name, self._option_string_actions)}")
        return super().parse_args(arguments, namespace)

    def error(self, message):
        raise UsageError(f"{message} ('{self.prog} --help' lists what there is)")

    def _check_value(self, action, value):
        if action.choices is not None and value not in action.choices:
            name = "/".join(action.option_strings) or action.metavar or action.dest
            choices = [str(choice) for choice in action.choices]
            raise UsageError(
                f"{name} {value}, expected one of {', '.join(choices)}{did_you_mean(str(value), choices)}"
            )


def _command(name: str):
    return importlib.import_module(f"edge_kit.commands.{name}")


def _overview() -> str:
    lines = ["usage: edge-kit COMMAND [OPTION …]", "", "commands:"]
    lines += [f"  {name:8} {_command(name).HELP}" for name in COMMANDS]
    return "\n".join(
        lines + ["", "'edge-kit COMMAND --help' explains one; 'edge-kit --version' shows the version."]
    )


def _dispatch(arguments) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"edge-kit {edge_kit.__version__}")
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        kind = "option" if name.startswith("-") else "command"
        hint = did_you_mean(name, (*COMMANDS, "--help", "--version"))
        raise UsageError(f"unknown {kind} '{name}', expected one of {', '.join(COMMANDS)}{hint}")
    command = _command(name)
    parser = Parser(prog=f"edge-kit {name}", description=command.HELP)
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments[1:]))


def main(arguments=None) -> int:
    """Runs one command and gives its exit status: 2 for an error, 130 for Ctrl-C, 141 for a closed pipe."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    _open_missing_streams()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character must not end the run
        with _unwinding_on_signals():
            status = _dispatch(arguments)
            sys.stdout.flush()
        return status
    except EdgeKitError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        _discard(sys.stdout)
        return 141
    except MemoryError as error:
        return _fail(f"out of memory: {str(error) or 'close other programs, or use a smaller model'}")
    except OSError as error:
        where = error.filename if _flush(sys.stdout) else "standard output"
        # Without a name it was a file already open: the output, as a rule.
        return _fail(f"{os.fsdecode(where or 'reading or writing')}: {error.strerror or error}")


def _fail(message: str) -> int:
    """Shows an error as one line; nobody may be there to read it."""
    _flush(sys.stdout)
    try:
        print(f"edge-kit: error: {' '.join(message.split())}", file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)
    return 2


def _flush(stream) -> bool:
    """Whether what was written could be delivered."""
    try:
        stream.flush()
        return True
    except OSError:
        _discard(stream)
        return False


def _discard(stream) -> None:
    """Sends what is still buffered nowhere: it would fail again when Python closes the stream at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_missing_streams() -> None:
    """A process may be started without standard streams; the first file it opens would take their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))


@contextlib.contextmanager
def _unwinding_on_signals():
    """SIGTERM and SIGHUP end the command as Ctrl-C does, with what it began cleared away."""
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    taken = [number for number in (getattr(signal, name) for name in names) if _is_default(number)]

    def stop(number, _frame):
        for other in taken:
            signal.signal(other, signal.SIG_IGN)  # a second one must not end the clearing
        sys.exit(128 + number)

    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _is_default(number) -> bool:
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(number) is signal.SIG_DFL
