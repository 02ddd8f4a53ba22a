"""The files of the web page: all there, none from elsewhere, third-party ones unchanged."""
from __future__ import annotations

import ast
import glob
import hashlib
import re
from pathlib import Path

from edge_kit.server import web


def test_the_page_needs_no_other_file_and_no_inline_code():
    page = (web.FOLDER / "index.html").read_text()
    named = re.findall(r'(?:href|src)="([^"]+)"', page)
    assert named and [name for name in named if f"/{name}" not in web.files()] == []
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page)
    assert "unsafe" not in web.CONTENT_SECURITY_POLICY


def test_third_party_files_are_as_published():
    vendor = web.FOLDER / "vendor"
    sums = dict(line.split("  ")[::-1] for line in (vendor / "SHA256SUMS").read_text().splitlines())
    own = {"README.md", "SHA256SUMS"}
    files = {path.relative_to(vendor).as_posix() for path in vendor.rglob("*") if path.is_file()} - own
    assert files == set(sums)
    for name, expected in sums.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == expected, name
    assert {f"{folder.name}/LICENSE" for folder in vendor.iterdir() if folder.is_dir()} <= files


def test_a_wheel_brings_all_files_along():
    tree = ast.parse((web.FOLDER.parents[2] / "setup.py").read_text())
    (data,) = [node.value for node in ast.walk(tree) if getattr(node, "arg", "") == "package_data"]
    patterns = ast.literal_eval(data)["edge_kit.server.web"]
    packed = {Path(name) for one in patterns for name in glob.glob(str(web.FOLDER / one), recursive=True)}
    assert {path for path, _ in web.files().values()} <= packed
    assert set((web.FOLDER / "vendor").rglob("*")) <= packed
