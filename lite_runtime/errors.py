"""The errors a user can cause. Each message says what was found, what was expected and what to do."""

from __future__ import annotations

import difflib
import operator
import os


class EdgeKitError(Exception):
    """Base of all errors of the kit; the command line prints its message and exits with 2."""


class UsageError(EdgeKitError):
    """A wrong option or argument."""


class FileFormatError(EdgeKitError):
    """A file is not what it should be: damaged, cut short, or of another kind."""


class UnsupportedError(EdgeKitError):
    """A sound input that this kit, or this build of it, cannot handle."""


class MismatchError(EdgeKitError):
    """A saved session of another model, mode or kind of cache."""


class ContextFullError(EdgeKitError):
    """More tokens than the context holds."""


class MemoryLimitError(EdgeKitError):
    """Not enough memory for what was asked."""


class CancelledError(EdgeKitError):
    """The call was cancelled from another thread."""


class QueueFullError(EdgeKitError):
    """More requests than may wait. retry_after: seconds until a place is free, as far as can be told."""

    def __init__(self, message: str, retry_after: float):
        super().__init__(message)
        self.retry_after = retry_after


class ShuttingDownError(EdgeKitError):
    """A request that came, or still waited, when no more are begun."""


def whole_number(name: str, value, low: int, high: int) -> int:
    """`value` as an int; UsageError unless it is a whole number (NumPy's too) from `low` to `high`."""
    try:
        number = low - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = low - 1
    if not low <= number <= high:
        raise UsageError(f"{name} {value!r}, expected a whole number from {low} to {high}")
    return number


def file_path(path) -> str:
    """`path` as a string; UsageError if it cannot name a file."""
    try:
        text = os.fsdecode(path)
        if b"\0" in os.fsencode(text):  # C would end the name there and open another file
            raise ValueError("it holds a zero byte")
        return text
    except (TypeError, ValueError) as error:
        raise UsageError(f"path {path!r} cannot name a file: {error}") from None


def did_you_mean(word: str, words) -> str:
    """The end of a message about an unknown `word`: the closest of `words`, or nothing."""
    close = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
