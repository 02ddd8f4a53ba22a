"""Why a file is refused, one type per cause. All are FileFormatError."""

from __future__ import annotations

from lite_runtime.errors import FileFormatError


class NotAnNbFile(FileFormatError):
    """Something else lies there: a web page, an LFS pointer, another format, nothing."""


class UnsupportedNbFile(FileFormatError):
    """A `.nb` of a kind that this kit does not read (old meta version, several blocks)."""


class TruncatedNbFile(FileFormatError):
    """The file ends before what its own sizes promise."""


class DamagedNbFile(FileFormatError):
    """A table, an offset or a count contradicts the rest of the file."""


class MissingTensor(FileFormatError):
    """The program names a parameter that the file does not hold."""
