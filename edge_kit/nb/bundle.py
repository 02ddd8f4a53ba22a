"""The bundle: a zip archive (stored, not compressed) behind the last tensor of a `.nb` file.

Stock Paddle Lite ignores what follows the last tensor, and `zipfile` finds an archive at the end of any file:
both open the same file. It holds the tokenizer, the configuration, the licence and manifest.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping

from edge_kit.nb.reader import NbFile
from lite_runtime.bundle import UNSOUND
from lite_runtime.errors import FileFormatError

MANIFEST = "manifest.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal content gives equal bytes
_CHUNK_BYTES = 1 << 22


def write_bundle(path, files: Mapping[str, bytes]) -> None:
    """Appends `files` to a `.nb` file, in place of a bundle that it already has.

    The model's bytes are not touched. On failure the file ends behind its last tensor again.
    """
    with NbFile(path) as model:
        end = model.params_end
    with open(path, "r+b") as file:
        try:
            file.truncate(end)
            file.seek(end)
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for name in sorted(files):
                    entry = zipfile.ZipInfo(name, _EPOCH)
                    entry.external_attr = 0o644 << 16
                    archive.writestr(entry, files[name])
        except BaseException:
            file.truncate(end)
            raise


def read_bundle(path) -> dict[str, bytes]:
    """name -> content of all files in the bundle; FileFormatError if there is none or it is damaged."""
    path = os.fspath(path)
    with NbFile(path) as model:
        end, size = model.params_end, model.size
    if size == end:
        raise FileFormatError(
            f"{path}: has no bundle behind its last tensor (byte {end}): no tokenizer, no configuration. "
            "Expected a file that edge-kit export wrote; a bare paddle_lite_opt file has none."
        )
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > size - end or any(
                entry.header_offset < end or entry.compress_type != zipfile.ZIP_STORED for entry in entries
            ):
                raise zipfile.BadZipFile("its entries do not fit behind the tensors")
            return {entry.filename: archive.read(entry) for entry in entries}
    except UNSOUND as error:
        raise FileFormatError(
            f"{path}: the bundle behind the last tensor (bytes {end} to {size}) is damaged or cut short: "
            f"{error}. Copy or download the file again."
        ) from None


def read_manifest(path) -> dict:
    """manifest.json of the bundle."""
    content = read_bundle(path).get(MANIFEST)
    if content is None:
        raise FileFormatError(f"{path}: its bundle has no {MANIFEST}. Export the model again.")
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: {MANIFEST} in its bundle is no JSON: {error}") from None
    if not isinstance(manifest, dict):
        raise FileFormatError(f"{path}: {MANIFEST} in its bundle is no JSON object. Export the model again.")
    return manifest


def model_digest(path) -> str:
    """sha256, in hex, of the bytes before the bundle: header, program and tensors."""
    with NbFile(path) as model:
        left = model.params_end
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while left:
            chunk = file.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise FileFormatError(f"{path}: the file became shorter while it was read")
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()
