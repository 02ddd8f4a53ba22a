"""The fixed text that engines are compared over: public-domain English, Chinese and code.

It lies in tests/data of a checkout, with its sources; an installed wheel has the same folder as
edge_kit/evaldata.
"""

from __future__ import annotations

from pathlib import Path

from lite_runtime.errors import UsageError

NAMES = ("english.txt", "chinese.txt", "code.txt")


def folder() -> Path:
    """Where the texts lie: in the installed package, else in the checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "evaldata"
    return installed if installed.is_dir() else package.parent / "tests" / "data"


def fixed_texts() -> list[str]:
    """One text per file; each is a sequence of its own."""
    return [read_text(folder() / name) for name in NAMES]


def read_text(path) -> str:
    """A UTF-8 text; UsageError if there is none or it is empty."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: no UTF-8 text (byte {error.start}); convert it first") from None
    if not text.strip():
        raise UsageError(f"{path}: an empty text; expected some hundred words at least")
    return text
