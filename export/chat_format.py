"""The role format of a chat: fixed pieces around the messages, which the native core renders without Jinja.

chat_template.py makes it from a model's template; the manifest holds it as `chat_format`:
{"status": "reduced", and the fields of ChatFormat}, or {"status": "not_reduced", "reason": text}, or nothing
where the model has no template.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

TRIMS = {
    "none": lambda content: content,
    "both": str.strip,
    "leading_newlines": lambda content: content.lstrip("\n"),
}
SYSTEM_RULES = ("anywhere", "last_in_front", "first", "none")  # the widest first
TURNS = ("any", "alternate")
MAX_PIECE_BYTES = 1 << 16  # of a piece in UTF-8; the native reader takes no longer one


@dataclass(frozen=True)
class Role:
    """What stands before and after a message's content, and what is stripped from it: a key of TRIMS."""

    before: str
    after: str
    trim: str = "none"


@dataclass(frozen=True)
class ChatFormat:
    """The text of a conversation: `start`, the system message in front, the other messages, an ending.

    A conversation has one message or more, of the roles system, user and assistant; it is outside the format
    where a rule below says so, whatever the template makes of it.

    start: the first piece of every text.
    system_rule: where system messages may stand. "anywhere": among the others; "first": only as the first
        message; "last_in_front": anywhere, and the last of them is written in front, the others are left out;
        "none": nowhere.
    default_system: stands in front where no system message does.
    turns: "any" order of user and assistant, or "alternate": system messages left out, there is one message
        or more, the first is the user's, and the two take turns.
    roles: role → what is written around its contents; no "system" where system_rule is "none".
    thinking_end: an assistant's content begins behind the last of these marks (before trim); "" for none.
    end, generation_prompt: the last piece of a text without and with the prompt for an answer.
    """

    start: str
    system_rule: str
    default_system: str
    turns: str
    roles: dict[str, Role]
    thinking_end: str
    end: str
    generation_prompt: str

    def to_dict(self) -> dict:
        """As the manifest holds it."""
        return {"status": "reduced", **asdict(self)}

    def problem(self, messages) -> str | None:
        """Why the messages are outside the format; None if they are not."""
        if not messages:
            return "there are no messages"
        roles = [message["role"] for message in messages]
        for role in roles:
            if role not in self.roles:
                return f"the role {role}"
        if self.system_rule == "first" and "system" in roles[1:]:
            return "a system message that is not the first"
        if self.turns == "alternate":
            turns = [role for role in roles if role != "system"]
            if not turns or turns != (["user", "assistant"] * len(turns))[: len(turns)]:
                return "user and assistant do not take turns"
        return None

    def render(self, messages, add_generation_prompt: bool) -> str:
        """The text of messages inside the format. ChatFormat::render in C++ does the same."""
        systems = [i for i, message in enumerate(messages) if message["role"] == "system"]
        if self.system_rule == "last_in_front":
            left_out, front = systems, systems[-1:]
        else:
            left_out = front = systems[:1] if systems[:1] == [0] else []
        parts = [self.start]
        parts += [self._turn(messages[i]) for i in front] or [self.default_system]
        parts += [self._turn(message) for i, message in enumerate(messages) if i not in left_out]
        parts.append(self.generation_prompt if add_generation_prompt else self.end)
        return "".join(parts)

    def _turn(self, message) -> str:
        role, content = self.roles[message["role"]], message["content"]
        if message["role"] == "assistant" and self.thinking_end:
            content = content.split(self.thinking_end)[-1]
        return role.before + TRIMS[role.trim](content) + role.after
