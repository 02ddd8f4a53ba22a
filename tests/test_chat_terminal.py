"""`edge-kit chat` in a pseudo terminal, by what stands on its screen."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import termios
from pathlib import Path

import pytest

pytest.importorskip("prompt_toolkit")
pytest.importorskip("rich")
pytest.importorskip("pyte", reason="without it no test can read a terminal's screen")

from pseudo_terminal import PseudoTerminal  # noqa: E402

from lite_runtime.conversation_file import write_messages  # noqa: E402

SCRIPTED = Path(__file__).with_name("chat_scripted.py")
THOUGHT = "First, 35 heads.\nThen 94 feet, 2 < 4.\n</think>\n\n有23只鸡，12只兔 🐔。"
FOLDED = " tokens; Ctrl-T or /thinking shows it"
CTRL_C, CTRL_D, CTRL_T, ALT_ENTER, ENTER, UP = "\x03", "\x04", "\x14", "\x1b\r", "\r", "\x1b[A"
WIDTH = 130  # a line of speeds fits


@pytest.fixture
def chat(native_library, r1_nb):
    """chat(answers, options, seconds per token): R1's tokenizer and template, the model says `answers`."""
    with contextlib.ExitStack() as stack:

        def start(answers, *options, seconds=0.0, file=r1_nb, columns=WIDTH, rows=40, **environment):
            command = [sys.executable, str(SCRIPTED), str(seconds), "|".join(answers), str(file), *options]
            terminal = stack.enter_context(PseudoTerminal(command, columns, rows, **environment))
            terminal.wait_for("\n>")
            return terminal

        yield start


def ask(terminal, text: str, n_answers: int = 1) -> str:
    """Sends a line and waits for the answer's end and the next prompt."""
    terminal.type(text + ENTER)
    terminal.wait_for(" new at ", n_answers)
    return ready(terminal)


def ready(terminal) -> str:
    while not terminal.text().endswith("\n>"):
        terminal.wait_for("\n>")
        terminal.read()
    return terminal.text()


def messages_of(terminal, path) -> list:
    n_before = terminal.text().count("[saved: ")
    terminal.type(f"/save {path}{ENTER}")
    terminal.wait_for("[saved: ", n_before + 1)
    ready(terminal)
    return json.loads(path.read_text())["messages"]


def test_thinking_streams_and_folds_and_unfolds(chat):
    terminal = chat([THOUGHT], seconds=0.03)
    terminal.type("今有雉兔同笼" + ENTER)
    terminal.wait_for("> 今有雉兔同笼\nthinking, ")
    terminal.wait_for(" tokens\nFirst, 35 heads.\nThen 94")
    assert "thought" not in terminal.text()
    terminal.wait_for(" new at ")
    shown = ready(terminal)
    assert "feet" not in shown and "thinking, " not in shown and "\ufffd" not in shown
    lines = shown.splitlines()
    assert lines[1] == "> 今有雉兔同笼" and lines[2].startswith("thought for ") and lines[2].endswith(FOLDED)
    assert lines[3] == "有23只鸡，12只兔 🐔。" and "the model ended its answer" in lines[4]
    dim = b"\x1b[2m"
    assert dim + b"First, 35 heads." in terminal.raw and dim + "有".encode() not in terminal.raw
    terminal.type(CTRL_T)
    terminal.wait_for("First, 35 heads.\nThen 94 feet, 2 < 4.")
    ready(terminal)
    terminal.type("/thinking" + ENTER)
    terminal.wait_for("First, 35 heads.\nThen 94 feet, 2 < 4.", 2)
    terminal.type(CTRL_D)
    assert terminal.end() == 0


def test_a_real_model_thinks_and_answers(native_library, r1_nb):
    command = [sys.executable, "-m", "edge_kit", "chat", str(r1_nb), "--thinking-budget", "12"]
    with PseudoTerminal([*command, "--max-new-tokens", "30"], WIDTH) as terminal:
        terminal.wait_for("\n>")
        shown = ask(terminal, "How many?")
        assert ", 12 tokens;" in shown and " new at " in shown
        terminal.type("/exit" + ENTER)
        assert terminal.end() == 0


def test_commands(chat, tmp_path):
    terminal = chat(["</think>\n\nEins.", "</think>\n\nZwei."], "--system", "Be brief.")
    ask(terminal, "Hi")
    path = tmp_path / "talk.json"
    saved = messages_of(terminal, path)
    assert [message["content"] for message in saved] == ["Be brief.", "Hi", "Eins."]
    for line, said in [
        ("/system", "\nBe brief.\n"),
        ("/system Think.", "[the system message is another one"),
        ("/reset", "[the conversation begins anew]"),
        ("/load " + str(path), "questions: 1]"),
        ("/load nowhere", "[nowhere: cannot be read"),
        ("/save nowhere/x", "[nowhere/x.session: cannot be written"),
        ("/stats", "memory    "),
        ("/help", "Tab completes."),
        ("/rset", "did you mean '/reset'?]"),
    ]:
        terminal.type(line + ENTER)
        terminal.wait_for(said)
        ready(terminal)
    ask(terminal, "And?", 2)
    assert [message["content"] for message in messages_of(terminal, path)] == [
        "Be brief.", "Hi", "Eins.", "And?", "Zwei."
    ]  # fmt: skip
    terminal.type("/exit" + ENTER)
    assert terminal.end() == 0


def test_lines_history_and_pasted_text(chat, tmp_path):
    terminal = chat([f"</think>\n\n{n}." for n in range(4)])
    terminal.type(f"a 你{ALT_ENTER}b 🐔\\{ENTER}c")
    terminal.wait_for("> a 你\n  b 🐔\n  c")
    ask(terminal, "")
    terminal.paste("first\nsecond\n\n  /reset\nlast")
    terminal.wait_for("  last")
    ask(terminal, "", 2)
    terminal.type(UP * 5)
    terminal.wait_for("> first", 2)
    terminal.type(UP)
    terminal.wait_for("> a 你", 2)
    ask(terminal, "!", 3)
    questions = [message["content"] for message in messages_of(terminal, tmp_path / "x")[::2]]
    assert questions == ["a 你\nb 🐔\nc", "first\nsecond\n\n  /reset\nlast", "a 你\nb 🐔\nc!"]
    terminal.type("/sta\t")
    terminal.wait_for("> /stats")
    terminal.type(ENTER)
    terminal.wait_for("model     ")


def test_ctrl_c_at_the_prompt_clears_it(chat, tmp_path):
    terminal = chat(["</think>\n\nYes."])
    terminal.type("half a line" + CTRL_C)
    terminal.wait_for("\n>", 2)
    terminal.type(CTRL_C)
    terminal.wait_for("\n>", 3)
    ask(terminal, "Hi")
    assert messages_of(terminal, tmp_path / "x")[0]["content"] == "Hi"
    terminal.type(CTRL_D)
    assert terminal.end() == 0


def test_ctrl_c_while_it_reads(chat, demo_nb, tmp_path):
    long = tmp_path / "long.json"
    turns = [{"role": "user", "content": "one two three " * 2500}, {"role": "assistant", "content": "Yes."}]
    write_messages(long, turns)
    terminal = chat(["Never.", "Yes."], "--threads", "1", file=demo_nb)
    terminal.type(f"/load {long}{ENTER}")
    terminal.wait_for("questions: 1]")
    ready(terminal)
    terminal.type("Why?" + ENTER)
    terminal.wait_for("reading, ")
    terminal.type(CTRL_C * 2)
    terminal.wait_for("; cancelled]")
    assert " new" not in ready(terminal) and "reading, " not in terminal.text()
    assert messages_of(terminal, tmp_path / "x") == turns
    terminal.type("/reset" + ENTER)
    assert "Never." in ask(terminal, "Hi")


def test_ctrl_c_while_it_thinks(chat, tmp_path):
    terminal = chat(["Hm, so it is…"], seconds=0.02)
    for turn, said in enumerate(("so it is is is", "is is is"), 1):
        terminal.type("Why?" + ENTER)
        terminal.wait_for(said)
        terminal.type(CTRL_C * 3)
        terminal.wait_for("; cancelled]", turn)
        shown = ready(terminal)
        assert shown.count("thought for ") == turn and "is is" not in shown
    assert [m["content"] for m in messages_of(terminal, tmp_path / "x")] == ["Why?", "", "Why?", ""]
    terminal.type(CTRL_D)
    assert terminal.end() == 0


def test_ctrl_c_while_it_answers(chat, tmp_path):
    terminal = chat(["</think>\n\nYes, yes…"], seconds=0.02)
    terminal.type("Hi" + ENTER)
    terminal.wait_for("Yes, yes yes yes")
    terminal.type(CTRL_C)
    terminal.wait_for("; cancelled]")
    ready(terminal)
    answer = messages_of(terminal, tmp_path / "x")[-1]["content"]
    assert answer.startswith("Yes, yes yes yes") and answer in terminal.text()


def test_a_circle_is_left(chat):
    terminal = chat(["</think>\n\nYes, yes…"])
    assert "cut: it repeated itself" in ask(terminal, "Hi")


def test_what_the_model_writes_does_not_control_the_terminal(chat, tmp_path):
    evil = "\x1b[2J\x1b]0;owned\x07\x9b31m[bold red]x[/] [/nope] \x1b[6n\r:smile:"
    terminal = chat([f"{evil}\n</think>\n\n{evil} end", f"</think>\n\n{evil}"])
    shown = ask(terminal, "Hi")
    text = "[2J]0;owned31m[bold red]x[/] [/nope] [6n:smile:"
    assert text + " end" in shown and shown.startswith("Ctrl-C stops")
    terminal.type(CTRL_T)
    terminal.wait_for(f"\n{text}\n")
    for sequence in (b"\x1b[2J\x1b]", b"\x1b]0;", b"\x9b31m", b"\x1b[6n\r"):
        assert sequence not in terminal.raw.replace(evil.encode(), b"")
    assert evil.encode() not in terminal.raw


@pytest.mark.parametrize("columns, rows", [(24, 8), (20, 3)])
def test_a_narrow_terminal(chat, columns, rows):
    line = "今有雉兔同笼，上有三十五头，下有九十四足 👩‍👩‍👧‍👦 🐔 and so on. "
    thought = "".join(f"{k}. {line}" for k in range(6))  # no two alike, which would be a repetition
    answer = f"{thought}\n</think>\n\n有23只鸡。"
    terminal = chat([answer], columns=columns, rows=rows, seconds=0.005)
    terminal.type("Hi" + ENTER)
    terminal.wait_for("ended")
    shown = ready(terminal).replace("\n", "")
    assert "> Hithought for " in shown and "今有" not in shown and "有23只鸡。" in shown
    terminal.type("/thinking" + ENTER)
    terminal.wait_for("so on.")


def test_what_is_typed_meanwhile_waits(chat, tmp_path):
    terminal = chat(["</think>\n\nOne two three four.", "</think>\n\nTwo."], seconds=0.05)
    terminal.type("Hi" + ENTER)
    terminal.wait_for("One two")
    assert not terminal.flags() & termios.ECHO
    terminal.type("Next" + ENTER)
    terminal.wait_for(" new at ", 2)
    assert "\nOne two three four.\n" in ready(terminal)
    assert [m["content"] for m in messages_of(terminal, tmp_path / "x")[::2]] == ["Hi", "Next"]


@pytest.mark.parametrize("asked", [False, True])
def test_a_signal_gives_the_terminal_back(chat, asked):
    terminal = chat(["</think>\n\nYes, yes…"], seconds=0.02)
    if asked:
        terminal.type("Hi" + ENTER)
        terminal.wait_for("Yes, yes yes")
    assert not terminal.flags() & termios.ECHO
    terminal.signal(signal.SIGTERM)
    assert terminal.end() == 128 + signal.SIGTERM
    assert terminal.flags() & termios.ECHO and terminal.flags() & termios.ICANON
    assert "Traceback" not in terminal.text()


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"PYTHONPATH": "{without}"}])
def test_plain_lines_where_it_cannot_be_more(chat, tmp_path, environment):
    for name in ("rich", "prompt_toolkit"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not installed')\n")
    environment = {name: value.format(without=tmp_path) for name, value in environment.items()}
    terminal = chat(["Hm.\n</think>\n\nEins.", "\n</think>\n\nYes, yes…"], seconds=0.02, **environment)
    shown = ask(terminal, "Hi")
    assert "> Hi\nHm.\n\nEins.\n[" in shown
    terminal.type("half")
    terminal.wait_for("> half")
    terminal.type(CTRL_C)
    terminal.wait_for("\n>", 3)
    terminal.type("a\\" + ENTER)
    terminal.type("b" + ENTER)
    terminal.wait_for("Yes, yes yes")
    terminal.type(CTRL_C * 2)
    terminal.wait_for("; cancelled]")
    ready(terminal)
    assert messages_of(terminal, tmp_path / "x")[2]["content"] == "a\nb"
    terminal.type(CTRL_D)
    assert terminal.end() == 0
