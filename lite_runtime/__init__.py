"""The device side of edge-kit: loads a `.nb` file and decodes it natively. Needs neither Paddle nor edge_kit.

For example:

    with lite_runtime.load("model.nb") as model, model.session() as session:
        for item in session.generate(model.text.encode_chat([{"role": "user", "content": "Hello"}])):
            print(item.text, end="", flush=True)
"""

from __future__ import annotations

from ._native import available_isas
from .answer import AnswerReader, ChatItem
from .batching import Batcher, BatchItem, BatchStats, Request
from .constraint import Constraint
from .conversation import Conversation
from .generate import Item
from .model import Model, ModelInfo, load
from .pool import SessionPool
from .session import Session
from .thinking import Tags

__all__ = [
    "AnswerReader",
    "BatchItem",
    "BatchStats",
    "Batcher",
    "ChatItem",
    "Constraint",
    "Conversation",
    "Item",
    "Model",
    "ModelInfo",
    "Request",
    "Session",
    "SessionPool",
    "Tags",
    "available_isas",
    "load",
]
