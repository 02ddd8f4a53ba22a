"""Conversations whose answers a test writes; what their next prompt is, and that their cache is exact."""

from __future__ import annotations

import collections

import numpy as np

from lite_runtime.conversation import Conversation

GREEDY = {"temperature": 0, "max_new_tokens": 8}
THOUGHT = "First, 35 heads.\nThen 94 feet, 2 < 4.\n</think>\n\n有23只鸡，12只兔 🐔。"


class Script:
    """Texts that a model says next, whatever its logits are; all else is computed."""

    def __init__(self):
        self.ids = collections.deque()

    def say(self, model, text: str, end: bool = True) -> list:
        ids = model.text.encode(text, bos=False) + ([min(model.eos_ids)] if end else [])
        self.ids.extend(ids)
        return ids

    def sample(self, _logits, _sampling, _history, _position) -> int:
        return self.ids.popleft()


def quiet(model, **options) -> Conversation:
    """A conversation that does nothing by itself."""
    return Conversation(model, prefill_when_idle=False, **options)


def content(items) -> str:
    return "".join(item.content for item in items)


def next_prompt(conversation, text: str) -> list:
    """Ids that the next turn's prompt has, by the template over texts as the model wrote them."""
    messages = [{"role": m["role"], "content": written(m)} for m in conversation.messages]
    return conversation.model.text.encode_chat([*messages, {"role": "user", "content": text}])


def written(message: dict) -> str:
    if "reasoning_content" not in message:
        return message["content"]
    return f"<think>\n{message['reasoning_content']}\n</think>\n\n{message['content']}"


def check_logits(conversation, text: str) -> None:
    """The next prompt's last logits are those of a cold session; the conversation is left as it was."""
    ids = next_prompt(conversation, text)
    with conversation.model.session() as cold, conversation.session.fork() as warm:
        common = warm.reuse(ids)
        np.testing.assert_array_equal(warm.forward(ids[common:])[-1], cold.forward(ids)[-1])
