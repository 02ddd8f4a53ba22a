"""The command line's errors: one line, exit status 2, the closest match; pipes and Ctrl-C end cleanly."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import pytest

import edge_kit
from edge_kit.cli import COMMANDS, main
from edge_kit.nb.bundle import read_bundle, write_bundle

EDGE_KIT = [sys.executable, "-m", "edge_kit"]


@pytest.mark.parametrize(
    "line, message",
    [
        ("rum m.nb hi", "unknown command 'rum', expected one of .*; did you mean 'run'"),
        ("--versoin", "unknown option '--versoin'.*did you mean '--version'"),
        ("run m.nb hi --temprature 0.5", "unknown option --temprature; did you mean '--temperature'"),
        ("run --temprature=0.5", "unknown option --temprature; did you mean"),  # before what is missing
        ("run m.nb hi --temp 0.5", "unknown option --temp"),  # no guessing from a beginning
        ("run m.nb", "required: PROMPT"),
        ("run m.nb hi --threads many", "--threads: 'many', expected an integer of at least 1"),
        ("run m.nb hi --max-new-tokens 0", "'0', expected an integer of at least 1"),
        ("run m.nb hi --top-p x", "--top-p: invalid float value: 'x'"),
        ("run m.nb hi --raw --system x", "--system needs the chat template"),
        ("run m.nb hi there", "unrecognized arguments: there"),
        ("bench {tiny} --new-tokens 3000", "need a context of 3128, the limit is 2048"),
        ("bench m.nb --promt-tokens 3", "did you mean '--prompt-tokens'"),
        ("run none.nb hi", "none.nb: cannot be read: No such file"),
        ("run {text} hi", "not a .nb file but a text"),
        ("run {tiny} hi --top-k -3", "top_k -3, expected a whole number from 0"),
        ("run {tiny} hi --n-ctx 3", "the prompt needs .* tokens .* limit is 3"),
    ],
)
def test_one_line_and_status_2(line, message, capsys, tiny_nb, native_library, tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("no model\n")
    assert main(line.format(tiny=tiny_nb, text=text).split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("edge-kit: error: ") and captured.err.count("\n") == 1
    assert re.search(message, captured.err), captured.err


@pytest.mark.parametrize(
    "line, message",
    [
        ("export --modle x", "unknown option --modle; did you mean '--model'"),
        ("export --target amr", "--target amr, expected one of arm, mac, rpi4, rpi5, x86; did you mean 'arm"),
        ("export --quant int4", "--quant int4, expected one of int8, fp32; did you mean 'int8'"),
    ],
)
def test_export_options_are_checked_first(line, message, capsys):
    assert main(line.split()) == 2
    assert message in capsys.readouterr().err


def test_overview_and_version(capsys):
    assert main(["--help"]) == 0
    overview = capsys.readouterr().out
    assert all(f"\n  {name} " in overview for name in COMMANDS)
    assert main([]) == 2
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.endswith(f"edge-kit {edge_kit.__version__}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name):
    done = subprocess.run(EDGE_KIT + [name, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and f"usage: edge-kit {name}" in done.stdout


def test_running_needs_no_export_code(tiny_nb, native_library):
    code = (
        "import sys; from edge_kit.cli import main\n"
        f"assert main(['run', {str(tiny_nb)!r}, 'hi', '--max-new-tokens', '2']) == 0\n"
        "heavy = ('paddle', 'edge_kit.export', 'edge_kit.nb', 'gguf')\n"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("\n[]\n"), done.stdout + done.stderr


@pytest.fixture
def endless(tiny_nb, native_library, tmp_path) -> list:
    """A run that never ends by itself: random:tiny without end tokens, with a large context."""
    path = tmp_path / "endless.nb"
    shutil.copy(tiny_nb, path)
    write_bundle(path, {**read_bundle(path), "generation_config.json": b'{"eos_token_id": []}'})
    return EDGE_KIT + ["run", str(path), "hello", "--raw", "--n-ctx", "500000"]


def test_a_closed_pipe_is_no_error(endless):
    process = subprocess.Popen(endless, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(10)
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_ctrl_c_stops_the_answer_and_says_so(endless, options):
    process = subprocess.Popen(endless + options, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if options:
        time.sleep(3)
    else:
        assert process.stdout.read(10)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert '"finish_reason": "cancelled"' in out if options else "; cancelled]" in err


def test_ctrl_c_anywhere_else(tiny_nb, native_library):
    process = subprocess.Popen(
        EDGE_KIT + ["run", str(tiny_nb), "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(2)  # it waits for its input
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("name, status", [("{tiny}", 0), ("none.nb", 2)])
def test_missing_standard_streams(tiny_nb, native_library, closed, name, status):
    line = f"exec {shlex.join(EDGE_KIT)} run {name.format(tiny=tiny_nb)} - --max-new-tokens 2 {closed}"
    done = subprocess.run(line, shell=True, input="hi", capture_output=True, text=True, timeout=60)
    assert done.returncode == status and "Traceback" not in done.stderr, done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize(
    "line", ["run {tiny} hi --max-new-tokens 2", "inspect {tiny}", "doctor none.nb", "--help"]
)
def test_output_that_cannot_be_written(tiny_nb, native_library, line):
    with open("/dev/full", "w") as full:
        command = EDGE_KIT + line.format(tiny=tiny_nb).split()
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert re.match("edge-kit: error: (.*: No space left on|none.nb: cannot be read)", done.stderr)


def test_nobody_reads_the_error():
    read_end, write_end = os.pipe()
    os.close(read_end)
    assert subprocess.run(EDGE_KIT + ["rum"], stderr=write_end, timeout=60).returncode == 2
    os.close(write_end)


def test_other_errors_of_the_system_are_one_line(monkeypatch, capsys):
    for error, message in [
        (PermissionError(13, "Permission denied", "/secret/m"), "/secret/m: Permission denied"),
        (OSError("the device is gone"), "reading or writing: the device is gone"),
        (MemoryError(), "out of memory: close other programs"),
    ]:
        monkeypatch.setattr("edge_kit.cli._dispatch", Mock(side_effect=error))
        assert main(["run"]) == 2
        assert capsys.readouterr().err.startswith(f"edge-kit: error: {message}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_clears_away_what_was_begun(endless, number, tmp_path):
    code = (
        "import sys, time, tempfile, edge_kit.cli as cli\n"
        "def command(_):\n"
        f"    with tempfile.TemporaryDirectory(dir={str(tmp_path)!r}, prefix='begun-'):\n"
        "        print(flush=True)\n"
        "        time.sleep(60)\n"
        "cli._dispatch = command\n"
        "sys.exit(cli.main([]))"
    )
    for command in ([sys.executable, "-c", code], endless):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout.read(1)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 128 + number and b"Traceback" not in err
    assert not list(tmp_path.glob("begun-*"))
