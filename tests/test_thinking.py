"""Reasoning and answer told apart, however the text is cut; the thinking budget on real models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_runtime.answer import AnswerReader
from lite_runtime.thinking import Tags, ThinkingParser

TAGS = Tags()
PIECES = st.sampled_from(
    ["<think>", "</think>", "<", "</", "think", ">", "<think", "</thin", "\n", " ", "今有", "🐔", "x < y"]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


def whole(text: str, inside: bool) -> tuple:
    """What the parser shall give, by a look at the whole text."""
    if not inside:
        if not text.lstrip().startswith(TAGS.open):
            return "", text
        text = text.lstrip()[len(TAGS.open) :]
    reasoning, _, content = text.partition(TAGS.close)
    return reasoning.strip("\n"), content.lstrip("\n")


def parse(pieces, inside: bool) -> tuple:
    parser = ThinkingParser(inside, TAGS)
    parts = [parser.add(piece) for piece in pieces] + [parser.flush()]
    return tuple("".join(part) for part in zip(*parts))


@given(TEXTS, st.booleans(), st.data())
def test_every_chunking_parses_like_the_whole(text, inside, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
    assert parse(pieces, inside) == parse(list(text), inside) == parse([text], inside) == whole(text, inside)


@given(TEXTS, TEXTS, st.booleans())
def test_join_is_split_again(reasoning, content, inside):
    reasoning, content = reasoning.replace(TAGS.close, "").strip("\n"), content.lstrip("\n")
    if TAGS.close in reasoning:  # what was taken out put one together
        return
    text = TAGS.join(reasoning, content)
    if inside:
        text = text[len(TAGS.open) + 1 :]
    assert parse(list(text), inside) == (reasoning, content)
    assert TAGS.join(None, content) == content


def test_no_more_is_held_back_than_may_become_a_tag():
    parser = ThinkingParser(True, TAGS)
    steps = [
        ("\n", "", ""),  # layout
        ("a <", "a ", ""),
        (" b", "< b", ""),
        ("<<", "<", ""),
        ("/thinx", "</thinx", ""),
        ("\n\n", "", ""),  # may be in front of the tag
        ("c", "\n\nc", ""),
        ("\n</think>", "", ""),
        ("\n", "", ""),
        ("\n<", "", "<"),  # nothing is a tag any more
        ("think></think>\n", "", "think></think>\n"),
    ]
    for text, reasoning, content in steps:
        assert parser.add(text) == (reasoning, content), text
    assert parser.flush() == ("", "")


def test_without_thinking_nothing_waits_or_changes():
    parser = ThinkingParser(False, TAGS)
    assert [parser.add(text) for text in (" ", "\n<t", "able>")] == [("", ""), ("", ""), ("", " \n<table>")]
    assert not parser.has_block and parse([" \n "], False) == ("", " \n ")


def test_where_it_begins():
    assert TAGS.opened_by("<｜Assistant｜><think>\n") and TAGS.opened_by("<think>")
    assert not TAGS.opened_by("<think>\n\n</think>\n\n") and not TAGS.opened_by("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    "template, tag",
    [
        (None, "<think>"),
        ("{{ messages }}", "<think>"),
        ("{% if '</think>' in content %}", "<think>"),
        ("content.split('</seed:think>')[-1] + '<seed:think>'", "<seed:think>"),
        ("'</thinking>'", "<thinking>"),
    ],
)
def test_tags_of_a_template(template, tag):
    tags = Tags.of_template(template)
    assert (tags.open, tags.close) == (tag, tag.replace("<", "</"))


def test_reader_counts_reasoning_and_stops_in_the_content_alone():
    reader = AnswerReader("<think>\n", TAGS, stops=["END"], thinking_budget=4)
    pieces = [reader.add(i, text) for i, text in enumerate(["END", "?", "</think>", "\n\nthe E", "ND of"])]
    assert [piece.reasoning for piece in pieces] == ["END", "?", "", "", ""]
    assert [piece.content for piece in pieces] == ["", "", "", "the ", ""]
    assert [piece.finish_reason for piece in pieces] == [None] * 4 + ["stop"]
    assert reader.n_reasoning == 3 and not any(piece.close_thinking for piece in pieces)
    assert reader.flush() == ("", "")


def test_reader_closes_the_block_at_the_budget():
    reader = AnswerReader("<think>\n", TAGS, thinking_budget=2)
    assert not reader.add(1, "a").close_thinking
    assert reader.add(2, "b <").close_thinking
    assert reader.closed() == "<" and not reader.inside
    assert reader.add(3, "c").content == "c" and reader.n_reasoning == 2
    assert AnswerReader("<think>\n", TAGS, thinking_budget=0).over_budget
    assert not AnswerReader("assistant\n", TAGS, thinking_budget=0).over_budget
