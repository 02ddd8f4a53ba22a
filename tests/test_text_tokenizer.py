"""Tokenizer, chat template and bundle, on the real tokenizer of DeepSeek-R1-Distill-Qwen."""

from __future__ import annotations

import json
import zipfile

import pytest
from edge_kit.export.checkpoint.fetch import R1_TOKENIZER_CONFIG, R1_TOKENIZER_ZIP, fetch

from lite_runtime.bundle import Bundle
from lite_runtime.errors import FileFormatError, UnsupportedError, UsageError
from lite_runtime.text import Text

BOS = "<｜begin▁of▁sentence｜>"
QUESTION = [151646, 15191, 525, 498, 30]  # <BOS>Who are you?


def write_bundle(path, files: dict):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return Bundle(path)


@pytest.fixture(scope="module")
def r1_files() -> dict:
    archive, config = fetch(R1_TOKENIZER_ZIP, R1_TOKENIZER_CONFIG)
    with zipfile.ZipFile(archive) as inner:
        return {"tokenizer.json": inner.read("tokenizer.json"), "tokenizer_config.json": config.read_bytes()}


@pytest.fixture(scope="module")
def r1(r1_files, tmp_path_factory) -> Text:
    return Text(write_bundle(tmp_path_factory.mktemp("r1") / "r1.zip", r1_files))


def variant(tmp_path, r1_files, **changes) -> Text:
    """The same tokenizer with other entries in tokenizer_config.json; None removes one."""
    config = {**json.loads(r1_files["tokenizer_config.json"]), **changes}
    config = {name: value for name, value in config.items() if value is not None}
    return Text(write_bundle(tmp_path / "v.zip", {**r1_files, "tokenizer_config.json": json.dumps(config)}))


def test_raw_text_gets_one_bos(r1):
    assert r1.encode("Who are you?") == QUESTION
    assert r1.encode(BOS + "Who are you?") == QUESTION
    assert r1.encode("Who are you?", bos=False) == QUESTION[1:]


def test_no_bos_where_the_tokenizer_adds_none(tmp_path, r1_files):
    assert variant(tmp_path, r1_files, add_bos_token=False).encode("Who are you?") == QUESTION[1:]


def test_bos_by_the_post_processor_when_the_config_is_silent(tmp_path, r1_files):
    """Llama 3's form: tokenizer.json itself adds the token."""
    tokenizer = json.loads(r1_files["tokenizer.json"])
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {BOS: {"id": BOS, "ids": [151646], "tokens": [BOS]}},
    }
    config = {"bos_token": BOS}
    files = {"tokenizer.json": json.dumps(tokenizer), "tokenizer_config.json": json.dumps(config)}
    assert Text(write_bundle(tmp_path / "t.zip", files)).encode("Who are you?") == QUESTION
    assert variant(tmp_path, r1_files, add_bos_token=None).encode("Who are you?") == QUESTION[1:]


def test_chat_template_is_the_models_own(r1):
    messages = [{"role": "user", "content": "Who are you?"}]
    text = r1.render(messages)
    assert text == BOS + "<｜User｜>Who are you?<｜Assistant｜><think>\n"
    ids = r1.encode_chat(messages)
    assert ids == [151646, 151644, *QUESTION[1:], 151645, 151648, 198]
    assert r1.encode(text) == ids  # rendered text sent as a raw prompt: still one BOS


def test_old_thinking_is_dropped_by_the_template(r1):
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "one and one\n</think>\n\n2"},
        {"role": "user", "content": "2+2?"},
    ]
    text = r1.render(history)
    assert text.startswith(
        BOS + "Be brief.<｜User｜>1+1?<｜Assistant｜>\n\n2<｜end▁of▁sentence｜><｜User｜>2+2?"
    )
    assert "one and one" not in text


def test_template_environment(tmp_path, r1_files):
    source = (
        "{% for m in messages %}\n{% if m.role == 'system' %}{% continue %}{% endif %}\n"
        "    {{- {'text': m.content} | tojson }}\n{% endfor %}\n"
        "{{ eos_token }}{{ strftime_now('%Y') | length }}"
    )
    text = variant(tmp_path, r1_files, chat_template=source)
    rendered = text.render([{"role": "system", "content": "x"}, {"role": "user", "content": "é <b>"}])
    assert rendered.split() == ['{"text":', '"é', '<b>"}', "<｜end▁of▁sentence｜>4"]


@pytest.mark.parametrize(
    "part",
    [
        {"truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 1}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"Sequence": {"id": "B", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        },
    ],
)
def test_a_tokenizer_that_panics(tmp_path, r1_files, part):
    """tokenizers reads these, and its Rust code ends in a panic once they are used."""
    tokenizer = {**json.loads(r1_files["tokenizer.json"]), **part}
    config = {**json.loads(r1_files["tokenizer_config.json"]), "add_bos_token": None}
    files = {"tokenizer.json": json.dumps(tokenizer), "tokenizer_config.json": json.dumps(config)}
    with pytest.raises(FileFormatError, match="tokenizer.json behind the tensors cannot be used"):
        Text(write_bundle(tmp_path / "p.zip", files)).encode("Who are you?")


def test_named_templates_and_template_file(tmp_path, r1_files):
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert variant(tmp_path, r1_files, chat_template=named).render([]) == "D"
    bundle = write_bundle(tmp_path / "j.zip", {**r1_files, "chat_template.jinja": "from the file"})
    assert Text(bundle).render([]) == "from the file"


def test_template_errors(tmp_path, r1_files):
    with pytest.raises(UnsupportedError, match="--raw"):
        variant(tmp_path, r1_files, chat_template=None).render([])
    with pytest.raises(UsageError, match="roles must alternate"):
        variant(tmp_path, r1_files, chat_template="{{ raise_exception('roles must alternate') }}").render([])
    with pytest.raises(UsageError, match="unsafe"):
        variant(tmp_path, r1_files, chat_template="{{ messages.__class__.__mro__ }}").render([])


@pytest.mark.parametrize(
    "template",
    [
        "{% if %}",
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
        "{% for a in messages %}" * 25 + "{% endfor %}" * 25,  # Python nests 20 loops at most
        "{% if messages %}" * 99 + "{% endif %}" * 99,
        "{{ f(a=1, a=2) }}",
        "{% macro f(a, a) %}{% endmacro %}",
        "{{ " + "9" * 5000 + " }}",
    ],
)
def test_templates_that_do_not_compile(tmp_path, r1_files, template):
    with pytest.raises(FileFormatError, match="no valid Jinja"):
        variant(tmp_path, r1_files, chat_template=template).render([])


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}",
        "{{ 'x'.index('y') }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ 'a' * 10**15 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[0].role + 3 }}",
    ],
)
def test_a_template_that_fails_in_its_own_way(tmp_path, r1_files, template):
    with pytest.raises(UsageError, match="chat template refuses these messages: ."):
        variant(tmp_path, r1_files, chat_template=template).render([{"role": "user", "content": "hi"}])


def test_text_that_is_no_unicode(r1):
    with pytest.raises(UsageError, match="not valid Unicode at character 2"):
        r1.encode("ab\udcff")


def test_only_text_is_tokenized(r1):
    for value in (None, 3, b"text"):
        with pytest.raises(UsageError, match=f"a {type(value).__name__} to tokenize"):
            r1.encode(value)


def test_json_nested_too_deep(tmp_path, r1_files):
    deep = {**r1_files, "tokenizer_config.json": '{"a":' * 100_000}
    with pytest.raises(FileFormatError, match="tokenizer_config.json behind the tensors is no JSON"):
        Text(write_bundle(tmp_path / "deep.zip", deep))


def test_missing_and_damaged_bundles(tmp_path, r1_files):
    bare = tmp_path / "bare.nb"
    bare.write_bytes(b"\x02\x00" + bytes(1000))
    with pytest.raises(FileFormatError, match="no tokenizer.json behind the tensors"):
        Text(Bundle(bare))
    assert Bundle(bare).read_json("generation_config.json") == {}

    path = tmp_path / "damaged.zip"
    write_bundle(path, r1_files)
    data = bytearray(path.read_bytes())
    data[1000] ^= 0xFF  # inside tokenizer.json, which is stored as it is
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match="tokenizer.json behind the tensors is damaged"):
        Text(Bundle(path))

    with pytest.raises(FileFormatError, match="cannot be read"):
        Text(write_bundle(tmp_path / "no.zip", {"tokenizer.json": "{}"}))
    with pytest.raises(FileFormatError, match="JSON list, expected an object"):
        write_bundle(tmp_path / "list.zip", {"config.json": "[1]"}).read_json("config.json")


def test_a_long_text_gets_the_ids_of_any_other(r1):
    text = "The river 河流, 12 boats.\n" * 1000
    assert r1.encode(text) == [r1.bos_id, *r1.tokenizer.encode(text, add_special_tokens=False).ids]
