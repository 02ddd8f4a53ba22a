"""A conversation on disk: its messages as JSON, and the session's cache beside them.

    PATH          {"edge_kit_conversation": 1, "sha256": of the messages, "messages": [{"role", …}, …]}
    PATH.session  what Session.save writes

Each appears whole or not at all. They need not be of the same moment: of a cache, what the messages' prompt
begins with is used and the rest cut. Without PATH.session the prompt is prefilled anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile

from .errors import EdgeKitError, FileFormatError, UsageError, file_path

VERSION = 1
_MAX_BYTES = 1 << 28  # no conversation comes near; a hostile file could claim anything


def session_path(path) -> str:
    """Where the cache of the conversation saved at `path` lies."""
    return file_path(path) + ".session"


def check_messages(messages) -> list:
    """Copies of `messages`, dicts with the texts "role", "content" and maybe "reasoning_content"; or
    UsageError."""
    if not isinstance(messages, (list, tuple)):
        raise UsageError(f"messages are a {type(messages).__name__}, expected a list")
    for index, message in enumerate(messages):
        texts = message if isinstance(message, dict) else {}
        optional = texts.get("reasoning_content", "")
        if not all(isinstance(text, str) for text in (texts.get("role"), texts.get("content"), optional)):
            raise UsageError(
                f"message {index} is {str(message)[:80]!r}, expected a dict with the texts role and content"
            )
        try:
            "".join((texts["role"], texts["content"], optional)).encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"message {index} is not valid Unicode: {error.reason}") from None
    return [dict(message) for message in messages]


def write_messages(path, messages: list) -> None:
    """Raises EdgeKitError, with the system's reason, if it cannot be written; UsageError for what is no
    JSON."""
    path = file_path(path)
    temporary = None
    try:
        content = {"edge_kit_conversation": VERSION, "sha256": _digest(messages), "messages": messages}
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=os.path.dirname(path) or ".",
            prefix=os.path.basename(path) + ".", suffix=".tmp", delete=False,
        ) as file:  # fmt: skip
            temporary = file.name
            json.dump(content, file, ensure_ascii=False, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise EdgeKitError(f"{path}: cannot be written: {error.strerror}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: the messages cannot be written as JSON: {error}") from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def read_messages(path) -> list:
    """The messages of a saved conversation. FileFormatError: there are none, or damaged ones; EdgeKitError:
    the file cannot be read."""
    path = file_path(path)
    try:
        if not os.path.isfile(path):
            os.stat(path)
            raise EdgeKitError(f"{path}: it is no regular file; expected a saved conversation")
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise EdgeKitError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > _MAX_BYTES:
        raise FileFormatError(f"{path}: more than {_MAX_BYTES} bytes, expected a saved conversation")
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: no saved conversation, or a damaged one: {error}") from None
    version = content.get("edge_kit_conversation") if isinstance(content, dict) else None
    if version is None:
        raise FileFormatError(f"{path}: not a saved conversation; expected what Conversation.save wrote")
    if version != VERSION:
        raise FileFormatError(f"{path}: a conversation of version {version!r}, this build reads {VERSION}")
    try:
        messages = check_messages(content.get("messages"))
    except UsageError as error:
        raise FileFormatError(f"{path}: damaged: {error}") from None
    if content.get("sha256") != _digest(messages):
        raise FileFormatError(f"{path}: damaged: the checksum of its messages differs")
    return messages


def _digest(messages: list) -> str:
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode("ascii")).hexdigest()
