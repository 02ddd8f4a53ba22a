"""Chat templates reduced to the role format of chat_format.py.

A template is a program; most only put fixed pieces around the messages. These pieces are learnt from probe
conversations that the real template renders, and the format that results is proved on generated ones: every
text must be the template's. What differs anywhere is not reduced.

A template may also run for ever or fill the memory. So it is tried in a process of its own, and this module
is that program too: files of a checkpoint come in, `chat_format` goes out.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import random
import re
import subprocess
import sys
from dataclasses import replace

from jinja2 import Environment, nodes

from lite_runtime import device
from lite_runtime.bundle import Bundle
from lite_runtime.errors import EdgeKitError, UnsupportedError, UsageError
from lite_runtime.text import Text

from .chat_format import MAX_PIECE_BYTES, SYSTEM_RULES, TRIMS, TURNS, ChatFormat, Role

PROOFS = 2000  # conversations on which a format has to equal its template
_REASON_LENGTH = 300  # a template may raise an error of any length, and of characters that steer a terminal
_MOST_SECONDS = 120  # the slowest templates of known models take a few
_MOST_BYTES = 2 << 30  # of memory, beside what the libraries take
_TURN = ("user", "assistant")
_THINKING_END = "</think>"
_WORDS = [
    *("", "long " * 500, " ", "\n", "\n\n", "\t ", "\r\n", "\u00a0", "\u3000", "Hello", "Why?", "1 + 1 = 2"),
    *("{{ messages }}", "{% raw %}", "{# #}", "{}", "}}", "<b>&amp;</b>", "'", '"', "\\n", "\\", "`x`", "%s"),
    *("今有雉兔同笼", "👍🏽", "👩\u200d🚀", "e\u0301", "null", "False", "0", "### ", "/no_think"),
    *("user", "assistant", "<think>", _THINKING_END, "<s>", "</s>", "[INST]"),
    *("<|im_start|>user\n", "<|im_end|>", "<|eot_id|>", "<｜User｜>", "<｜Assistant｜>"),
]


class _Irreducible(Exception):
    """The template is not of the tried form; the text says where it differs."""


def reduce_files(files: dict[str, bytes]) -> dict | None:
    """`chat_format` of the manifest for a checkpoint's files; None if the model has no template."""
    import_path = os.pathsep.join(map(os.path.abspath, sys.path))
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=pickle.dumps(dict(files)),
            capture_output=True,
            timeout=_MOST_SECONDS,
            env={**os.environ, "PYTHONPATH": import_path},
        )
    except subprocess.TimeoutExpired:
        return _not_reduced(f"trying it took more than {_MOST_SECONDS} seconds")
    except OSError as error:
        return _not_reduced(f"no process could be started to try it: {error}")
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return _not_reduced(f"trying it failed with status {done.returncode}: {last}")
    return json.loads(done.stdout)


def _reduce_files(files: dict[str, bytes]) -> dict | None:
    try:
        found = reduce_template(Text(_Files(files)))
    except UnsupportedError:
        return None
    except (EdgeKitError, UnicodeError, MemoryError) as error:
        found = str(error) or type(error).__name__
    return found.to_dict() if isinstance(found, ChatFormat) else _not_reduced(found)


def _not_reduced(reason: str) -> dict:
    reason = "".join(c if c.isprintable() else " " for c in reason[:_REASON_LENGTH])
    return {"status": "not_reduced", "reason": reason}


def reduce_template(text: Text) -> ChatFormat | str:
    """The widest format that equals the text's template, or the reason why there is none.

    UnsupportedError: there is no template; FileFormatError: it is no Jinja.
    """
    template = _Template(text)
    for system_rule, turns in itertools.product(SYSTEM_RULES, TURNS):
        try:
            found = _learn(template, system_rule, turns)
            _prove(template, found)
            return found
        except _Irreducible as difference:
            reason = str(difference)
    return reason


class _Files(Bundle):
    """A checkpoint's files before they are in a bundle."""

    def __init__(self, files: dict[str, bytes]):
        self.path = "the checkpoint"
        self._names = frozenset(files)
        self._files = files

    def read(self, name: str) -> bytes:
        return self._files[name]


class _Template:
    """The real template. Notes whether it asks for the date, on which a fixed format cannot depend."""

    def __init__(self, text: Text):
        self._text = text
        self.reads_the_date = False

    def render(self, messages, add_generation_prompt: bool) -> str:
        try:
            rendered = self._text.render(messages, add_generation_prompt, strftime_now=self._strftime_now)
            rendered.encode("utf-8")
        except (UsageError, UnicodeError) as error:
            raise _Irreducible(f"{error} ({_order(messages)})") from None
        if self.reads_the_date:
            raise _Irreducible("the template writes the date (strftime_now)")
        return rendered

    def literals(self) -> list[str]:
        """All strings that stand in it, which it may look for in contents, and the special tokens."""
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(self._text.template_source)
        constants = [node.value for node in tree.find_all(nodes.Const)]
        strings = {value for value in constants if isinstance(value, str)}
        return sorted(strings | {*self._text.special_tokens.values()})

    def _strftime_now(self, form: str) -> str:
        self.reads_the_date = True
        return form

    def pieces(self, *roles: str, prompt: bool = False) -> list[str]:
        """What stands before, between and behind the contents of messages with these roles."""
        contents = [f"Content{i}Of{len(roles)}" for i in range(len(roles))]
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents)]
        rendered = self.render(messages, prompt)
        found = re.split("|".join(contents), rendered)
        if re.findall("|".join(contents), rendered) != contents:
            raise _Irreducible(f"the contents do not stand once each and in their order ({_order(messages)})")
        return found


def _learn(template: _Template, system_rule: str, turns: str) -> ChatFormat:
    front, user_to_assistant, assistant_to_user, _, assistant_end = template.pieces(*_TURN * 2)
    _, user_end = template.pieces("user")
    _, user_prompt = template.pieces("user", prompt=True)
    for size in range(min(len(user_end), len(assistant_end)) + 1):
        # The shortest ending with which the pieces fit: what is not written between messages.
        end = user_end[len(user_end) - size :]
        try:
            user_after, assistant_after = _without_end(user_end, end), _without_end(assistant_end, end)
            user_before = _without_start(assistant_to_user, assistant_after)
            assistant_before = _without_start(user_to_assistant, user_after)
            prompt = _without_start(user_prompt, user_after)
            front = _without_end(front, user_before)
            break
        except _Irreducible:
            continue
    else:
        raise _Irreducible("what stands around user and assistant messages changes from turn to turn")
    roles = {"user": Role(user_before, user_after), "assistant": Role(assistant_before, assistant_after)}
    start, default = front, ""
    if system_rule != "none":
        with_system, behind_system, _ = template.pieces("system", "user")
        before, after = with_system, _without_end(behind_system, user_before)
        if system_rule == "anywhere":
            before = _without_start(template.pieces("user", "system")[1], user_after)
            start = _without_end(with_system, before)
        elif with_system.startswith(front):
            before = with_system[len(front) :]
        else:
            start = ""
        default = _without_start(front, start)
        roles["system"] = Role(before, after)
    found = ChatFormat(start, system_rule, default, turns, roles, "", end, prompt)
    longest = max(len(piece.encode()) for piece in _strings(found.to_dict()))
    if longest > MAX_PIECE_BYTES:
        raise _Irreducible(f"it writes a piece of {longest} bytes, a format's have {MAX_PIECE_BYTES} at most")
    for role in roles:
        found = _learn_content(template, found, role)
    return found


def _learn_content(template: _Template, found: ChatFormat, role: str) -> ChatFormat:
    """With what the template does to the contents of a role, where that is something known."""
    odd = f"\n \tone{_THINKING_END}\n two{_THINKING_END}\n\n three \n"
    roles = [name for name in ("system", *_TURN, "user") if name in found.roles]
    messages = [{"role": name, "content": odd if name == role else "one"} for name in roles]
    expected = template.render(messages, False)
    for trim, thinking_end in itertools.product(TRIMS, ("", _THINKING_END)):
        tried = replace(found, roles={**found.roles, role: replace(found.roles[role], trim=trim)})
        if role == "assistant":
            tried = replace(tried, thinking_end=thinking_end)
        if tried.render(messages, False) == expected:
            return tried
    return found  # the proof finds the difference, and names it


def _prove(template: _Template, found: ChatFormat) -> None:
    inside = (pair for pair in conversations(1, template.literals()) if found.problem(pair[0]) is None)
    for messages, prompt in itertools.islice(inside, PROOFS):
        expected, rendered = template.render(messages, prompt), found.render(messages, prompt)
        if rendered != expected:
            at = len(os.path.commonprefix([rendered, expected]))
            raise _Irreducible(
                f"the template writes {_excerpt(expected, at)}, pieces around each role would give "
                f"{_excerpt(rendered, at)} ({_order(messages)})"
            )


def conversations(seed: int, literals=()):
    """Endless (messages, add_generation_prompt), of orders and contents that a template may treat apart.

    `literals` are texts that it may look for, at the start, the end or inside of a content.
    """
    rng = random.Random(seed)
    words, literals = [*_WORDS, *literals], [*literals, _THINKING_END]
    while True:
        count = rng.randint(1, 8) if rng.random() < 0.98 else 40
        if rng.random() < 0.6:
            roles = [*itertools.islice(itertools.cycle(_TURN), count)]
        else:
            roles = rng.choices(_TURN, k=count)
        if rng.random() < 0.5:
            roles.insert(0, "system")
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            roles.insert(rng.randint(0, len(roles)), "system")
        messages = []
        for role in roles:
            content = "".join(rng.choices(words, k=rng.randint(0, 4)))
            way = rng.random()
            if way < 0.1:
                content = f"{rng.choice(literals)}{content}{rng.choice(literals)}"
            elif way < 0.4 and role == "assistant":
                content = f"<think>\n{content}\n{_THINKING_END}\n\n{rng.choice(words)}"
            messages.append({"role": role, "content": content})
        yield messages, rng.random() < 0.5


def _without_start(text: str, start: str) -> str:
    if not text.startswith(start):
        raise _Irreducible(f"{start!r} is expected where the template writes {text[:40]!r}")
    return text[len(start) :]


def _without_end(text: str, end: str) -> str:
    if not text.endswith(end):
        raise _Irreducible(f"{end!r} is expected where the template writes {text[-40:]!r}")
    return text[: len(text) - len(end)]


def _excerpt(text: str, at: int) -> str:
    return repr(text[max(at - 15, 0) : at + 15]) if at < len(text) else "the end of the text"


def _order(messages) -> str:
    roles = [message["role"] for message in messages]
    return "messages of " + ", ".join(roles if len(roles) <= 8 else [*roles[:8], "…"])


def _strings(value):
    if isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    else:
        yield value


def _main() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # where the system has no such limit
        import resource

        # Not RLIMIT_AS: that also counts what threads only reserve, many gigabytes with many cores.
        taken = re.search(r"VmData:\s*(\d+) kB", device.read("/proc/self/status"))
        most = _MOST_BYTES + (int(taken[1]) * 1024 if taken else 0)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    json.dump(_reduce_files(pickle.load(sys.stdin.buffer)), sys.stdout)


if __name__ == "__main__":
    _main()
