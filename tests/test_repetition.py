"""Answers that go round in circles are seen, and others are not."""

from __future__ import annotations

import json
import random

import pytest

import lite_runtime
from edge_kit.cli import main
from lite_runtime.answer import AnswerReader
from lite_runtime.repetition import RepetitionDetector
from lite_runtime.thinking import Tags


def found_at(ids) -> list:
    """After how many tokens the detector said so."""
    detector = RepetitionDetector()
    return [n for n, token in enumerate(ids, 1) if detector.add(token)]


def test_32_tokens_three_times_in_a_row():
    gram = random.Random(1).sample(range(1000), 32)
    assert found_at([5, 6, *gram * 3, 7]) == [98]
    assert found_at([*gram * 2, *gram[:31]]) == []
    assert found_at([*gram * 2, 5000, *gram]) == []
    assert found_at([*gram, *gram[:31], 5000, *gram * 3]) == [160]
    assert found_at([1] * 97) == [96, 97]  # shorter ones that fill 32 tokens
    assert found_at([1, 2, 3, 4] * 24) == [96]


def test_it_is_what_the_definition_says():
    rng = random.Random(2)
    ids = []
    while len(ids) < 3000:
        gram = [rng.randrange(3) for _ in range(rng.choice((1, 8, 16, 31, 32, 33, 64)))]
        ids += gram * rng.choice((1, 2, 3, 4, 100 // len(gram) + 1))
    expected = [
        at for at in range(96, len(ids) + 1)
        if any(
            ids[at - n : at] == ids[at - 2 * n : at - n] == ids[at - 3 * n : at - 2 * n]
            for n in range(32, min(256, at // 3) + 1)
        )
    ]  # fmt: skip
    assert found_at(ids) == expected and expected


@pytest.mark.parametrize("period", [1, 3, 20, 31, 33, 66, 100, 200, 256])
def test_a_circle_of_any_length_up_to_256_tokens_is_seen(period):
    circle = random.Random(period).sample(range(1000), period)
    n = period * -(-32 // period)  # the shortest n-gram that it fills
    assert found_at([9999, *circle * (3 * n // period)]) == [1 + 3 * n]


def test_a_longer_circle_is_none():
    assert found_at(random.Random(1).sample(range(1000), 257) * 4) == []


def test_a_reader_ends_with_it_unless_told_not_to():
    for on in (True, False):
        reader = AnswerReader("", Tags(), stop_at_repetition=on)
        reasons = [reader.add(7, "ha").finish_reason for _ in range(96)]
        assert reasons == [None] * 95 + ["repetition" if on else None]


@pytest.mark.parametrize("raw, reason, n", [([], "repetition", 96), (["--raw"], "length", 120)])
def test_run_ends_with_it_but_not_raw(tiny_nb, native_library, monkeypatch, capsys, raw, reason, n):
    with lite_runtime.load(tiny_nb) as model:
        token = model.text.encode("a", bos=False)[0]
    monkeypatch.setattr("lite_runtime.generate.sample", lambda *_: token)
    assert main(["run", str(tiny_nb), "x", "--json", "--max-new-tokens", "120", *raw]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["finish_reason"], report["text"], len(report["token_ids"])) == (reason, "a" * n, n)
