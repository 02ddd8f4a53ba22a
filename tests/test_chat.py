"""`edge-kit chat` in a pipe: questions, commands and errors as plain text; and what a command does."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import lite_runtime
from edge_kit.chat.chat import COMMANDS, Chat, clean
from lite_runtime.conversation import Conversation

EDGE_KIT = [sys.executable, "-m", "edge_kit"]
GREEDY = {"temperature": 0, "max_new_tokens": 6, "speculate": False}
SCRIPTED = os.path.join(os.path.dirname(__file__), "chat_scripted.py")


class Front:
    """Keeps what it is given."""

    interactive = False
    keys = "Keys."

    def __init__(self):
        self.said, self.noticed, self.answers = [], [], []

    def show(self, items):
        items = list(items)
        self.answers.append("".join(item.content for item in items))
        return items[-1]

    def say(self, text):
        self.said.append(text)

    def notice(self, text):
        self.noticed.append(text)


@pytest.fixture
def front():
    return Front()


@pytest.fixture
def chat(tiny):
    with Chat(tiny, "tiny.nb", "Be brief.", GREEDY, {}) as chat:
        yield chat


def piped(lines: str, *arguments, command=EDGE_KIT, **environment):
    done = subprocess.run(
        [*command, *map(str, arguments)], input=lines.encode("utf-8", "surrogateescape"), capture_output=True,
        timeout=60, env={**os.environ, "TERM": "xterm-256color", **environment},
    )  # fmt: skip
    assert b"\x1b" not in done.stdout + done.stderr and b"Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    return done.stdout.decode(), done.stderr.decode()


def contents(path) -> list:
    """Of the messages that were saved there."""
    return [message["content"] for message in json.loads(path.read_text())["messages"]]


def test_a_pipe_gets_plain_text(tiny, tiny_nb):
    out, err = piped("Hi\n/stats\n", "chat", tiny_nb, "--max-new-tokens", "6", "--temperature", "0")
    with Conversation(tiny) as conversation:
        answer = "".join(item.content for item in conversation.ask("Hi", **GREEDY))
    assert out.startswith(clean(answer) + "\nmodel     ") and "resident" in out
    assert err.count("\n") == 1 and "6 new" in err


def test_every_command_in_a_pipe(tiny_nb, tmp_path):
    path = tmp_path / "talk.json"
    lines = f"""/system Be brief.
Hi
/save {path}
/reset
/system
/load {path}
/thinking
/help
/exit
never sent
"""
    out, err = piped(lines, "chat", tiny_nb, "--max-new-tokens", "4")
    assert f"[saved: {path} and {path}.session]" in out and "\nBe brief.\n" in out
    assert f"[loaded: {path}, questions: 1]" in out and "[no thinking before the last answer]" in out
    assert all(f"\n/{name} " in out for name in COMMANDS) and out.endswith("Ctrl-D ends.\n")
    assert contents(path)[:2] == ["Be brief.", "Hi"]
    assert err.count("\n") == 1  # of the one answer


def test_a_backslash_goes_on_in_the_next_line(tiny_nb, tmp_path):
    path = tmp_path / "talk.json"
    piped(f"one\\\n二 🐔\\\nthree\n/save {path}\nlast\\", "chat", tiny_nb, "--max-new-tokens", "1")
    assert contents(path)[0] == "one\n二 🐔\nthree"


def test_errors_are_one_line_each_and_the_conversation_goes_on(tiny_nb, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text('{"edge_kit_conversation": 1, "messages": []}')
    lines = [
        f"/load {bad}", f"/load {tmp_path}", "/load", "/load nowhere.json", f"/save {tmp_path}/nowhere/x",
        "/rset", "/foo bar", "/reset now", "/exit now", "\udcff", "x" * 300, "Hi",
    ]  # fmt: skip
    out, err = piped("\n".join(lines), "chat", tiny_nb, "--max-new-tokens", "3", "--n-ctx", "90")
    errors = err.splitlines()
    assert len(errors) == len(lines) and "3 new" in errors[-1] and out.count("\n") == 1
    expected = [
        "checksum", "no regular file", "/load needs a PATH", "nowhere.json: cannot be read", "be written",
        "did you mean '/reset'?", "unknown command /foo", "/reset takes nothing", "/exit takes nothing",
        "not UTF-8", "not sent: the conversation needs",
    ]  # fmt: skip
    for text, line in zip(expected, errors):
        assert text in line and line[0] == "[" and line[-1] == "]"


def test_thinking_in_a_pipe(r1_nb, native_library):
    answer = "Two \x1b[2J[red]legs[/red].\n</think>\n\nSo \x1b]0;x\x07\x9b1m2。🐔"
    command = [sys.executable, SCRIPTED, "0", answer]
    out, _ = piped("How many?\n/thinking\n", r1_nb, command=command)
    assert out == "Two [2J[red]legs[/red].\n\nSo ]0;x1m2。🐔\nTwo [2J[red]legs[/red].\n"


def test_without_the_terminals_packages(tiny_nb, native_library):
    probe = (
        "import sys; from edge_kit.cli import main; status = main(sys.argv[1:])\n"
        "print([name for name in ('prompt_toolkit', 'rich') if name in sys.modules]); sys.exit(status)"
    )
    out, _ = piped("/exit\n", "chat", tiny_nb, command=[sys.executable, "-c", probe])
    assert out == "[]\n"


def test_what_is_no_command_is_sent(chat, front):
    for text in ("/etc/hosts, what is it?", " /reset", "a\n/reset", "/", "/2"):
        assert chat.handle(text, front)
        assert chat.conversation.messages[-2]["content"] == text
    assert not front.said and len(front.answers) == 5
    assert chat.handle("  \n ", front) and len(front.answers) == 5


def test_system_keeps_the_turns_and_reset_keeps_the_system(chat, front):
    chat.handle("Hi", front)
    chat.handle("/system Think\ntwice.  ", front)
    roles = [message["role"] for message in chat.conversation.messages]
    assert roles == ["system", "user", "assistant"]
    assert chat.conversation.messages[0]["content"] == "Think\ntwice."
    chat.handle("/RESET", front)
    assert chat.conversation.messages == [{"role": "system", "content": "Think\ntwice."}]


def test_load_goes_on_where_save_was(tiny, chat, front, tmp_path):
    chat.handle("Hi", front)
    chat.handle("What?", front)
    chat.handle(f"/save {tmp_path}/a b.json", front)
    chat.handle("Why?", front)
    with Chat(tiny, "tiny.nb", None, GREEDY, {}) as other:
        other.handle(f"/load {tmp_path}/a b.json", front)
        other.handle("Why?", front)
        assert other.conversation.messages == chat.conversation.messages
        other.handle("/stats", front)
    assert front.answers[-1] == front.answers[-2] and " known; " in front.said[-1]
    assert front.said[-1].startswith("model     tiny.nb: kernel ") and "answers   1: " in front.said[-1]
    assert len(front.noticed) == 4


def test_a_conversation_of_another_model_is_refused_and_this_one_stays(chat, front, demo_nb, tmp_path):
    path = tmp_path / "demo.json"
    with lite_runtime.load(demo_nb) as demo, Conversation(demo) as conversation:
        list(conversation.ask("Hi", **GREEDY))
        conversation.save(path)
    chat.handle("Hi", front)
    before = list(chat.conversation.messages)
    chat.handle(f"/load {path}", front)
    assert front.noticed[-1].startswith(f"[{path}.session: ") and "another model" in front.noticed[-1]
    assert chat.conversation.messages == before and chat.handle("Why?", front)
    assert len(front.answers) == 2


def test_limits_hold_for_a_loaded_conversation_too(tiny, front, tmp_path):
    limits = {"overflow": "stop", "thinking_budget": 3}
    with Chat(tiny, "tiny.nb", None, GREEDY, limits) as chat:
        chat.handle("Hi", front)
        chat.handle(f"/save {tmp_path}/x", front)
        chat.handle(f"/load {tmp_path}/x", front)
        conversation = chat.conversation
        assert (conversation.overflow, conversation.thinking_budget) == ("stop", 3)
        assert conversation.stop_at_repetition


def test_clean():
    every = "".join(map(chr, range(0x180))) + "\u200d你🐔"
    assert clean(every) == "".join(c for c in every if c in "\n\t" or not (c < " " or "\x7f" <= c <= "\x9f"))
