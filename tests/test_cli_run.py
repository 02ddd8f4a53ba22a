"""run, chat and doctor on random:tiny."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

from edge_kit.cli import main

EDGE_KIT = [sys.executable, "-m", "edge_kit"]
SMOKE = Path(__file__).with_name("runtime_smoke.py")


def run_json(capsys, *arguments) -> dict:
    assert main(["run", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_run_gives_what_the_api_gives(tiny, tiny_nb, capsys):
    options = ["--max-new-tokens", 10, "--temperature", 1.2, "--top-p", 0.9, "--seed", 5]
    report = run_json(capsys, tiny_nb, "What is 你好?", "--system", "Be brief.", *options)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 你好?"}]
    ids = tiny.text.encode_chat(messages)
    items = list(tiny.session().generate(ids, max_new_tokens=10, temperature=1.2, top_p=0.9, seed=5))
    assert report["prompt_ids"] == ids
    assert report["token_ids"] == [item.token for item in items]
    assert report["text"] == "".join(item.text for item in items)
    assert report["finish_reason"] == items[-1].finish_reason
    assert report["timings"]["prefill_tps"] > 0 and report["timings"]["load_s"] > 0
    assert (report["kernel"], report["threads"]) == (tiny.info.isa, tiny.info.n_threads)


def test_raw_prompt_and_standard_input(tiny, tiny_nb, capsys, monkeypatch):
    raw = run_json(capsys, tiny_nb, "Hello", "--raw", "--max-new-tokens", 2)
    assert raw["prompt_ids"] == tiny.text.encode("Hello")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello\n")))
    piped = run_json(capsys, tiny_nb, "-", "--raw", "--max-new-tokens", 2)
    assert (piped["prompt_ids"], piped["text"]) == (raw["prompt_ids"], raw["text"])


def test_text_goes_to_stdout_and_speeds_to_stderr(tiny_nb, native_library):
    command = EDGE_KIT + ["run", str(tiny_nb), "Hello", "--max-new-tokens", "6", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "tokens/s" not in done.stdout and done.stdout.endswith("\n")
    assert done.stderr.count("\n") == 1 and "6 new at" in done.stderr and "--max-new-tokens" in done.stderr


def test_standard_input_that_is_no_utf8(tiny_nb, native_library):
    command = EDGE_KIT + ["run", str(tiny_nb), "-"]
    done = subprocess.run(command, input=b"ab\xff", capture_output=True, timeout=60)
    assert done.returncode == 2 and b"not UTF-8 (byte 2)" in done.stderr


def test_chat_command_until_the_input_ends(tiny_nb, native_library):
    command = EDGE_KIT + ["chat", str(tiny_nb), "--max-new-tokens", "3", "--n-ctx", "90"]
    lines = b"hi\n\n" + b"x" * 200 + b"\n\xff\xfe\nyes\n"
    for environment in ({}, {"PYTHONIOENCODING": "utf-8:strict"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}):
        done = subprocess.run(
            command, input=lines, capture_output=True, timeout=60, env={**os.environ, **environment}
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count(b" new") >= 2 and b"[not sent: the conversation needs" in done.stderr
        assert b"[not sent: the line is not UTF-8]" in done.stderr


def test_doctor(tiny_nb, native_library, monkeypatch, capsys):
    monkeypatch.setenv("EDGE_KIT_ISA", "scalar")
    assert main(["doctor", str(tiny_nb)]) == 0
    report = capsys.readouterr().out
    assert "chosen: scalar" in report and "kernel scalar" in report
    assert "GB/s from the mapped file" in report and "paddle_lite_opt" in report
    monkeypatch.setenv("EDGE_KIT_ISA", "sse9")
    assert main(["doctor"]) == 0
    assert "EDGE_KIT_ISA=sse9 is none of these" in capsys.readouterr().out


def test_smoke_script(tiny_nb, native_library):
    def smoke(*arguments):
        command = [sys.executable, str(SMOKE), str(tiny_nb), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    checksum = smoke().stdout.strip()
    assert len(checksum) == 8 and smoke(checksum).returncode == 0
    wrong = smoke("00000000")
    assert wrong.returncode == 1 and f"checksum {checksum}, expected 00000000" in wrong.stderr
