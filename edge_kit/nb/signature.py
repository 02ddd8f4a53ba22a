"""Names what lies in a file that is not a `.nb`, from its first bytes."""

from __future__ import annotations

import re

GIT_LFS_POINTER = b"version https://git-lfs"
_STARTS = (
    (GIT_LFS_POINTER, "a git-LFS pointer: the content was not fetched (git lfs pull)"),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint, a wheel?)"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"GGUF", "a GGUF checkpoint: export it with edge-kit export --model FILE"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"\x7fELF", "a program or shared library (ELF)"),
    (b"\x80\x02", "a Python pickle (a .pdparams or .bin checkpoint?)"),
    (b"\x80\x04", "a Python pickle (a .pdparams or .bin checkpoint?)"),
    (b"\x89PNG", "a PNG picture"),
)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MARKUP = re.compile(rb"(\xef\xbb\xbf)?\s*(<!doctype|<html|<head|<\?xml)", re.IGNORECASE)


def is_web_page(head: bytes) -> bool:
    """Whether a file begins like HTML or XML, behind a byte order mark or not."""
    return bool(_MARKUP.match(head))


def name_content(head: bytes, size: int) -> str:
    """What a file of `size` bytes that begins with `head` (64 bytes are enough) seems to be."""
    if size == 0:
        return "an empty file: the download or copy did not happen"
    if is_web_page(head):
        return "a web page: the download got an error or a login page instead of the file"
    head = head[3:] if head.startswith(_BYTE_ORDER_MARK) else head
    for start, name in _STARTS:
        if head.startswith(start):
            return name
    if len(head) > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < size:
        return "a safetensors checkpoint: export it with edge-kit export --model FOLDER"
    if head.lstrip().startswith((b"{", b"[")):
        return "a JSON text (a PIR program of Paddle 3, a config?)"
    if not any(head):
        return "zeros: an unfinished download or copy"
    if all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head):
        return "a text"
    return "bytes of an unknown kind"
