"""Reading the zip archive behind the last tensor: tokenizer, configuration, manifest.

Only what the device needs; the archive is written and fully checked by `edge_kit.nb.bundle`.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib

from .errors import FileFormatError

# What zipfile raises for an archive that is not sound, or for no file at all.
UNSOUND = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    struct.error,
    zlib.error,
)
_MAX_MEMBER_BYTES = 1 << 28  # no tokenizer comes near; a hostile archive could claim anything


class Bundle:
    """The files in the bundle of a `.nb` file. A file without a bundle gives an empty one."""

    def __init__(self, path):
        self.path = os.fspath(path)
        self._names = frozenset()
        if not os.path.isfile(self.path):
            return  # a pipe or a device could be read for ever
        try:
            with zipfile.ZipFile(self.path) as archive:
                self._names = frozenset(archive.namelist())
        except UNSOUND:
            pass  # no archive behind the tensors; what else is wrong, opening the model says

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def read(self, name: str) -> bytes:
        """Content of one file; FileFormatError if it is not there or damaged."""
        if name not in self._names:
            raise FileFormatError(
                f"{self.path}: no {name} behind the tensors. Expected a whole file of edge-kit export; "
                "one of paddle_lite_opt has none, and a cut download loses its end"
            )
        try:
            with zipfile.ZipFile(self.path) as archive:
                size = archive.getinfo(name).file_size
                if size > _MAX_MEMBER_BYTES:
                    raise FileFormatError(
                        f"{self.path}: {name} claims {size} bytes, expected at most {_MAX_MEMBER_BYTES}"
                    )
                return archive.read(name)
        except UNSOUND as error:
            raise FileFormatError(f"{self.path}: {name} behind the tensors is damaged: {error}") from None

    def read_json(self, name: str) -> dict:
        """A file of the bundle as a JSON object; {} if it is not there."""
        if name not in self._names:
            return {}
        try:
            value = json.loads(self.read(name).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"{self.path}: {name} behind the tensors is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise FileFormatError(
                f"{self.path}: {name} holds a JSON {type(value).__name__}, expected an object"
            )
        return value
