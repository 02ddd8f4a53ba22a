"""Naming a file for what it is when it is not what its name says."""

from __future__ import annotations

import json
from pathlib import Path

from edge_kit.nb.signature import GIT_LFS_POINTER, is_web_page
from lite_runtime.errors import FileFormatError


def reject_impostor(path: Path) -> None:
    """Raise if `path` is empty, a git-LFS pointer or an HTML page: what a failed download leaves behind."""
    if not path.is_file():  # opening a pipe would wait for its writer
        raise FileFormatError(f"{path}: expected a file, found something else, such as a folder")
    try:
        with open(path, "rb") as file:
            head = file.read(512)
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror}") from None
    if not head:
        raise FileFormatError(f"{path}: the file is empty; download it again")
    if head.startswith(GIT_LFS_POINTER):
        raise FileFormatError(
            f"{path}: this is a git-LFS pointer, not the file itself; run `git lfs pull` in that repository"
        )
    if is_web_page(head):
        raise FileFormatError(
            f"{path}: this is an HTML page, not the file itself (a download that failed or needs a login)"
        )


def read_json_object(path: Path) -> dict:
    """The JSON object in `path`, or an error that says what the file is instead."""
    reject_impostor(path)
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: not JSON ({error}); the file is damaged or cut short") from None
    if not isinstance(value, dict):
        raise FileFormatError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def to_json(value: dict) -> bytes:
    """UTF-8, indented: what stands in the bundle can be read by people."""
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode("utf-8")
