"""Conversations saved to files and loaded, or refused."""

from __future__ import annotations

import json
import os
import random

import pytest
from conversations import GREEDY, THOUGHT, check_logits, quiet

from lite_runtime.conversation import Conversation
from lite_runtime.errors import EdgeKitError, FileFormatError, MismatchError, UsageError


def test_saved_and_loaded(r1, tiny, script, tmp_path):
    path = tmp_path / "talk"
    with quiet(r1, system="Think.") as conversation:
        script.say(r1, THOUGHT)
        list(conversation.ask("今有雉兔同笼"))
        conversation.save(path)
        assert sorted(os.listdir(tmp_path)) == ["talk", "talk.session"]
        with Conversation.load(r1, path, prefill_when_idle=False) as loaded:
            assert loaded.messages == conversation.messages
            assert loaded.session.tokens == conversation.session.tokens
            check_logits(loaded, "Why?")
        conversation.reset()
        assert conversation.messages == [{"role": "system", "content": "Think."}]
        conversation.reset("Anew.")
        assert conversation.messages == [{"role": "system", "content": "Anew."}]
    with pytest.raises(MismatchError):
        Conversation.load(tiny, path)
    os.remove(tmp_path / "talk.session")
    with Conversation.load(tiny, path, prefill_when_idle=False) as loaded:
        assert len(loaded.session) == 0 and len(loaded.messages) == 3


def test_what_cannot_be_written_leaves_nothing(tiny, tmp_path):
    with quiet(tiny) as conversation:
        for content, extra in (("half \ud83d", {}), ("x", {"name": "\ud83d"}), ("x", {"tags": {1, 2}})):
            conversation.messages = [{"role": "user", "content": content, **extra}]
            with pytest.raises(UsageError, match="cannot be written as JSON"):
                conversation.save(tmp_path / "talk")
            assert os.listdir(tmp_path) == ["talk.session"]
        conversation.messages = []
        with pytest.raises(UsageError, match="message 0 is not valid Unicode"):
            conversation.ask("half \ud83d")


def test_damaged_files_are_refused(tiny, tmp_path):
    path = tmp_path / "talk"
    with quiet(tiny, system="Be brief.") as conversation:
        list(conversation.ask("x", **GREEDY))
        conversation.save(path)
    sound, session = path.read_bytes(), (tmp_path / "talk.session").read_bytes()
    rng = random.Random(3)
    for _ in range(200):
        damaged = bytearray(sound)
        at = rng.randrange(len(sound))
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged if rng.random() < 0.7 else damaged[:at])
        try:
            with Conversation.load(tiny, path) as loaded:  # what means the same, such as another space
                assert loaded.messages == conversation.messages
        except FileFormatError as error:
            assert str(path) in str(error)
    content = json.loads(sound)
    for change, problem in (
        ({"edge_kit_conversation": 2}, "version 2, this build reads 1"),
        ({"messages": [{"role": "user"}]}, "message 0 is .* expected a dict with the texts"),
        ({"messages": "x"}, "messages are a str"),
        ({"messages": []}, "checksum of its messages differs"),
        ({"edge_kit_conversation": None}, "not a saved conversation"),
    ):
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(FileFormatError, match=problem):
            Conversation.load(tiny, path)
    path.write_bytes(sound)
    (tmp_path / "talk.session").write_bytes(session[:-9])
    with pytest.raises(FileFormatError, match="talk.session"):
        Conversation.load(tiny, path)
    for place, problem in ((tmp_path, "no regular file"), (tmp_path / "no", "No such file")):
        with pytest.raises(EdgeKitError, match=problem):
            Conversation.load(tiny, place)


def test_a_save_that_fails_leaves_the_old_one(tiny, tmp_path):
    with quiet(tiny) as conversation:
        list(conversation.ask("x", **GREEDY))
        with pytest.raises(EdgeKitError, match="No such file"):
            conversation.save(tmp_path / "no" / "talk")
        (tmp_path / "talk").mkdir()
        with pytest.raises(EdgeKitError, match="talk: cannot be written"):
            conversation.save(tmp_path / "talk")
        assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
