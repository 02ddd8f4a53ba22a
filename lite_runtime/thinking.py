"""Reasoning and answer of a model that thinks first, told apart in the text as it comes.

The text is one block of reasoning between two tags, at its beginning or not at all, and the answer. Line
breaks around the block belong to the layout, which `Tags.join` writes again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CLOSING_TAG = re.compile(r"</([\w:]*think(?:ing)?)>")


@dataclass(frozen=True)
class Tags:
    """What stands around the reasoning."""

    open: str = "<think>"
    close: str = "</think>"

    @classmethod
    def of_template(cls, source) -> Tags:
        """The tags that a chat template speaks of; without a template, or tags in it, the usual ones."""
        found = _CLOSING_TAG.search(source or "")
        return cls(f"<{found.group(1)}>", found.group()) if found else cls()

    @property
    def closing(self) -> str:
        """What ends a block that the model did not end itself."""
        return f"\n{self.close}\n\n"

    def opened_by(self, prompt: str) -> bool:
        """Whether an answer to the rendered `prompt` begins inside the block."""
        return prompt.rstrip("\n").endswith(self.open)

    def join(self, reasoning, content: str) -> str:
        """The text that ThinkingParser splits into these two; `reasoning` None = there was no block."""
        return content if reasoning is None else f"{self.open}\n{reasoning}{self.closing}{content}"


class ThinkingParser:
    """Splits a text into reasoning and content; how it is cut into pieces changes nothing.

    Held back is only what may still become a tag or belong to the layout around one.
    """

    def __init__(self, inside: bool, tags: Tags):
        """inside: the text begins in the block, see `Tags.opened_by`."""
        self._tags = tags
        self._held = ""
        self._part = "reasoning" if inside else "start"
        self._after_tag = inside  # nothing but line breaks since the last tag

    @property
    def inside(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        return self._part == "reasoning"

    @property
    def has_block(self) -> bool:
        """Whether there is a block of reasoning, be it empty."""
        return self.inside or self._part == "answer after reasoning"

    def add(self, text: str) -> tuple:
        """(reasoning, content) that became certain with `text`; either may be empty."""
        self._held += text
        reasoning = content = ""
        if self._part == "start":
            self._find_opening()
        if self._part == "reasoning":
            reasoning = self._take_reasoning()
        if self._part in ("answer", "answer after reasoning"):
            self._skip_line_breaks()
            content, self._held = self._held, ""
        return reasoning, content

    def flush(self) -> tuple:
        """(reasoning, content) that was held back, when nothing more comes. Layout is dropped."""
        held, self._held = self._held, ""
        return (held.rstrip("\n"), "") if self.inside else ("", held)

    def _find_opening(self) -> None:
        text, tag = self._held.lstrip(), self._tags.open
        if text.startswith(tag):
            self._held, self._part, self._after_tag = text[len(tag) :], "reasoning", True
        elif not tag.startswith(text):
            self._part = "answer"

    def _take_reasoning(self) -> str:
        self._skip_line_breaks()
        text, tag = self._held, self._tags.close
        end = text.find(tag)
        if end >= 0:
            self._held, self._part, self._after_tag = text[end + len(tag) :], "answer after reasoning", True
            return text[:end].rstrip("\n")
        end = len(text[: len(text) - _may_become(text, tag)].rstrip("\n"))
        self._held = text[end:]
        return text[:end]

    def _skip_line_breaks(self) -> None:
        if self._after_tag:
            self._held = self._held.lstrip("\n")
            self._after_tag = not self._held


def _may_become(text: str, tag: str) -> int:
    """How many characters at the end of `text` are a beginning of `tag`, the whole of it left out."""
    most = min(len(tag) - 1, len(text))
    return next(n for n in range(most, -1, -1) if tag.startswith(text[len(text) - n :]))
