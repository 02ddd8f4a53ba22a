"""Chat templates reduced to role formats, which render natively what jinja2 does."""

from __future__ import annotations

import io
import itertools
import json
import random
import shutil
import zipfile

import chat_templates
import pytest
from edge_kit.export import chat_template
from edge_kit.export.chat_format import SYSTEM_RULES, TRIMS, TURNS
from edge_kit.export.chat_template import conversations, reduce_files
from edge_kit.export.checkpoint.byte_tokenizer import byte_tokenizer_files
from edge_kit.export.checkpoint.fetch import R1_TOKENIZER_CONFIG, R1_TOKENIZER_ZIP, fetch
from native_text import NativeText, texts_over
from text_lines import broken, mixed_lines

from edge_kit.cli import main
from edge_kit.nb.bundle import read_bundle
from edge_kit.nb.inspect import describe_chat_format
from lite_runtime.bundle import Bundle
from lite_runtime.errors import FileFormatError, UnsupportedError, UsageError
from lite_runtime.text import Text

CONVERSATIONS = 300
QUESTION = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def open_with(native_library, tiny_nb, tmp_path_factory):
    """open_with({name: bytes}) -> (Text, NativeText) of a small model with these files behind its tensors."""
    with texts_over(tiny_nb, tmp_path_factory.mktemp("chat")) as make:

        def pair(files: dict) -> tuple:
            native = make(files)
            return Text(Bundle(native.path)), native

        yield pair


def with_template(template) -> dict:
    """Files of a small tokenizer with this chat template and, as an export writes it, the manifest."""
    files = byte_tokenizer_files(300)
    config = json.loads(files["tokenizer_config.json"])
    config.update(bos_token="<s>", eos_token="</s>", chat_template=template)
    files["tokenizer_config.json"] = json.dumps(config).encode()
    return with_manifest(files)


def with_manifest(files: dict) -> dict:
    return {**files, "manifest.json": json.dumps({"chat_format": reduce_files(files)}).encode()}


def check_equal(text: Text, native: NativeText, found: dict, pairs) -> None:
    """CONVERSATIONS times the same text; what the format does not take is refused."""
    equal = refused = 0
    rules = found["system_rule"], found["turns"]
    while equal < CONVERSATIONS:
        messages, prompt = next(pairs)
        if allowed(messages, *rules):
            assert native.render(messages, prompt) == text.render(messages, prompt), messages
            equal += 1
        else:
            with pytest.raises(UsageError, match=r"messages\[\d+\]: |there is no user message"):
                native.render(messages, prompt)
            refused += 1
    assert (refused == 0) == (found["turns"] == "any" and rules[0] in SYSTEM_RULES[:2])


def allowed(messages, system_rule: str, turns: str) -> bool:
    """Whether the messages are of those that such a format declares."""
    letters = "".join(message["role"][0] for message in messages)
    if "s" in {"first": letters[1:], "none": letters}.get(system_rule, ""):
        return False
    letters = letters.replace("s", "")
    return turns == "any" or (letters[:1] == "u" and "uu" not in letters and "aa" not in letters)


@pytest.mark.parametrize("name", chat_templates.REDUCED)
def test_known_forms_reduce(open_with, name):
    template, system_rule, turns = chat_templates.REDUCED[name]
    files = with_template(template)
    found = json.loads(files["manifest.json"])["chat_format"]
    assert (found["status"], found["system_rule"], found["turns"]) == ("reduced", system_rule, turns)
    check_equal(*open_with(files), found, conversations(2, ["<s>", "</s>"]))


@pytest.mark.parametrize("name", chat_templates.NOT_REDUCED)
def test_other_forms_are_refused_with_a_reason(open_with, name):
    template, reason = chat_templates.NOT_REDUCED[name]
    files = with_template(template)
    assert json.loads(files["manifest.json"])["chat_format"]["status"] == "not_reduced"
    message = rf"(?s)could not be reduced to fixed pieces \(.*{reason}.*pass the text"
    with pytest.raises(UnsupportedError, match=message):
        open_with(files)[1].render(QUESTION)


def test_every_rule_is_some_forms():
    found = [reduce_files(with_template(template)) for template, *_ in chat_templates.REDUCED.values()]
    assert {each["system_rule"] for each in found} | {"last_in_front"} == set(SYSTEM_RULES)  # R1 has that
    assert {each["turns"] for each in found} == set(TURNS)
    assert {role["trim"] for each in found for role in each["roles"].values()} == set(TRIMS)


def test_a_template_that_differs_once_in_a_while_is_not_reduced():
    for word in ("Hello", "[INST]", "今有雉兔同笼", "</s>"):
        template = chat_templates.chatml("{{ m.content }}{% if '" + word + "' in m.content %}!{% endif %}")
        assert reduce_files(with_template(template))["status"] == "not_reduced"
    template = chat_templates.chatml(front="{% if messages | length == 7 %} {% endif %}")
    assert reduce_files(with_template(template))["status"] == "not_reduced"


@pytest.fixture(scope="module")
def r1_files() -> dict:
    archive, config = fetch(R1_TOKENIZER_ZIP, R1_TOKENIZER_CONFIG)
    with zipfile.ZipFile(io.BytesIO(archive.read_bytes())) as inner:
        files = {"tokenizer.json": inner.read("tokenizer.json"), "tokenizer_config.json": config.read_bytes()}
    return with_manifest(files)


@pytest.fixture(scope="module")
def demo_files(demo_nb) -> dict:
    return read_bundle(demo_nb)


@pytest.mark.parametrize("model", ["demo", "r1"])
def test_demo_and_r1_render_natively(request, open_with, model):
    files = request.getfixturevalue(f"{model}_files")
    text, native = open_with(files)
    found = json.loads(files["manifest.json"])["chat_format"]
    special = [*text.special_tokens.values()]
    check_equal(text, native, found, conversations(3, special))
    check_equal(text, native, found, of_lines(special))
    assert native.encode(native.render(QUESTION), special=True) == text.encode_chat(QUESTION)


def of_lines(marks):
    """Conversations of longer and stranger contents. C's texts have no NUL inside."""
    lines = itertools.cycle(line.replace("\0", "") for line in mixed_lines(31, 3000, marks))
    rng = random.Random(37)
    while True:
        roles = rng.choices(("system", "user", "assistant"), k=rng.randint(1, 8))
        yield [{"role": role, "content": next(lines)} for role in roles], rng.random() < 0.5


def test_pieces_of_demo_and_r1(demo_files, r1_files):
    demo = json.loads(demo_files["manifest.json"])["chat_format"]
    assert demo["default_system"].startswith("<|im_start|>system\nYou are a helpful AI assistant named Smol")
    assert demo["roles"]["user"] == {"before": "<|im_start|>user\n", "after": "<|im_end|>\n", "trim": "none"}
    r1 = json.loads(r1_files["manifest.json"])["chat_format"]
    assert (r1["start"], r1["system_rule"]) == ("<｜begin▁of▁sentence｜>", "last_in_front")
    assert (r1["thinking_end"], r1["generation_prompt"]) == ("</think>", "<｜Assistant｜><think>\n")
    assert r1["roles"]["assistant"]["after"] == "<｜end▁of▁sentence｜>"


def test_white_space_is_pythons(open_with):
    """str.strip() takes other characters than C or the tokenizers' regular expressions do."""
    text, native = open_with(with_template(chat_templates.REDUCED["llama 3"][0]))
    points = [point for point in range(1, 0x110000) if not 0xD800 <= point < 0xE000]
    for start in range(0, len(points), 4096):
        characters = [chr(point) for point in points[start : start + 4096]]
        messages = [{"role": "user", "content": f"{c}{c}a{c}b{c}"} for c in characters]
        assert native.render(messages) == text.render(messages)
    spaces = "".join(c for c in map(chr, points) if c.isspace())
    messages = [{"role": "user", "content": spaces}, {"role": "assistant", "content": f"{spaces}x{spaces}"}]
    assert native.render(messages) == text.render(messages)


@pytest.mark.parametrize("name", ["chatml", "llama 3", "qwq"])
def test_broken_bytes_are_replaced(open_with, name):
    text, native = open_with(with_template(chat_templates.REDUCED[name][0]))
    lines = broken(41, mixed_lines(43, 300, ["</think>", "\n", "\u3000"]))
    for line in (line.replace(b"\0", b"") for line in lines):
        roles = ("user", "assistant")
        expected = text.render([{"role": role, "content": line.decode("utf-8", "replace")} for role in roles])
        assert native.render([{"role": role, "content": line} for role in roles]) == expected


def test_messages_outside_the_format(open_with):
    def refused(native, message, *roles):
        with pytest.raises(UsageError, match=message):
            native.render([{"role": role, "content": "x"} for role in roles])

    native = open_with(with_template(chat_templates.REDUCED["vicuna"][0]))[1]
    refused(native, "there are no messages")
    refused(native, r"messages\[1\]: the role is 'tool', expected system, .*render the", "user", "tool")
    refused(native, r"messages\[0\]: the role is ''", "")
    refused(native, r"messages\[1\]: the role is user, expected assistant: user and", "user", "user")
    refused(native, r"messages\[1\]: the role is assistant, expected user", "system", "assistant")
    refused(native, r"messages\[2\]: a system message, .* first message only", "system", "user", "system")
    refused(native, "there is no user message", "system")
    native = open_with(with_template(chat_templates.REDUCED["gemma"][0]))[1]
    refused(native, r"messages\[0\]: this chat format has no system message", "system", "user")


def test_files_without_a_usable_format(open_with, tiny_nb):
    files = {name: data for name, data in read_bundle(tiny_nb).items() if name != "manifest.json"}

    def refused(error, message, manifest):
        given = files if manifest is None else {**files, "manifest.json": json.dumps(manifest).encode()}
        with pytest.raises(error, match=message):
            open_with(given)[1].render(QUESTION)

    refused(UnsupportedError, "no chat format behind the tensors: the model has no chat template, or", None)
    refused(UnsupportedError, "no chat format behind the tensors", {"format": 1})
    refused(FileFormatError, "the manifest is a list, expected an object", [])
    refused(FileFormatError, "chat_format is a string", {"chat_format": "reduced"})
    for status, message in (("new", "status of .* is 'new', known are"), ("reduced", "start is null")):
        refused(FileFormatError, message, {"chat_format": {"status": status}})


def test_model_without_a_template():
    for none in (None, 7, [], [{"name": ["default"], "template": "x"}, {"name": "tools", "template": "x"}]):
        assert reduce_files(with_template(none)) is None


def test_a_tokenizer_that_cannot_be_read():
    found = reduce_files({**with_template("x"), "tokenizer.json": b"{}"})
    assert found["status"] == "not_reduced" and "tokenizer.json" in found["reason"]


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set n = namespace(x='long ') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{{ messages | tojson(indent=100000000) }}",
    ],
)
def test_a_template_that_never_ends_or_fills_the_memory(monkeypatch, template):
    monkeypatch.setattr(chat_template, "_MOST_SECONDS", 8)
    found = json.loads(with_template(template)["manifest.json"])["chat_format"]
    assert found["status"] == "not_reduced"
    assert "more than 8 seconds" in found["reason"] or "MemoryError" in found["reason"]


def test_a_reason_is_one_line_of_printable_text():
    template = "{{ raise_exception('no\n\x1b[31m\ud800 today' ~ 'x' * 1000) }}"
    reason = json.loads(with_template(template)["manifest.json"])["chat_format"]["reason"]
    assert "no  [31m  today" in reason and reason.isprintable() and len(reason) == 300


def test_a_template_that_ends_its_process(monkeypatch):
    for program, reason in ((shutil.which("false"), "failed with status 1"), ("/no/python", "No such file")):
        monkeypatch.setattr(chat_template.sys, "executable", program)
        found = json.loads(with_template("x")["manifest.json"])["chat_format"]
        assert found["status"] == "not_reduced" and reason in found["reason"]


def test_export_and_inspect_tell(tmp_path, capsys):
    path = tmp_path / "tiny.nb"
    command = ["export", "--model", "random:tiny", "--optimizer", "builtin", "--out", str(path)]
    assert main(command) == 0
    assert "\n  chat template reduced\n" in capsys.readouterr().out
    assert main(["inspect", str(path)]) == 0
    assert "    chat_format          reduced\n" in capsys.readouterr().out
    assert describe_chat_format({"status": "not_reduced", "reason": "so"}) == "not reduced: so"
    assert (describe_chat_format(None), describe_chat_format([1])) == ("none", "damaged")


def test_output_is_the_same_every_time():
    files = with_template(chat_templates.REDUCED["vicuna"][0])
    assert files == with_template(chat_templates.REDUCED["vicuna"][0])
