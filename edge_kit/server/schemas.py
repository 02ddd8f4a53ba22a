"""The bodies of requests. A field that is not here is refused by name, since it would have no effect."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Optional, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

# Beside lengths that the server's limits hold: what one request may make the server work on.
MAX_MESSAGES = 4096
MAX_STOPS = 16
MAX_FIELDS = 64  # of an object, known or not


def _few(most: int) -> BeforeValidator:
    """Refuses a longer object before each of its entries gets an error of its own: for a body full of
    them nobody is served meanwhile. Lists are given up at their first error, by fail_fast."""

    def check(value):
        if isinstance(value, dict) and len(value) > most:
            text = f"an object of {len(value)} fields, expected {most} at most"
            raise PydanticCustomError("too_many", text)
        return value

    return BeforeValidator(check)


Text = Annotated[str, Field(max_length=1 << 20)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)

    _few_fields = model_validator(mode="before")(_few(MAX_FIELDS).func)


class TextPart(Body):
    type: Literal["text"]
    text: Text


class Message(Body):
    """reasoning_content: of an answer that the model thought about; the model's template may drop it."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Union[Text, Annotated[list[TextPart], Field(fail_fast=True)]]
    reasoning_content: Optional[Text] = None
    name: Optional[str] = Field(None, max_length=256, description="accepted, without effect")
    # What OpenAI's own client sends back with an answer.
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: None = None

    def plain(self) -> dict:
        """As lite_runtime takes it."""
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        message = {"role": "system" if self.role == "developer" else self.role, "content": "".join(parts)}
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        return message


Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
TokenIds = Annotated[list[int], Field(fail_fast=True, min_length=1, max_length=1 << 20)]


class JsonSchema(Body):
    name: str = Field(max_length=256, description="accepted, without effect")
    schema_: dict[str, Any] = Field(alias="schema")
    description: Optional[str] = Field(None, max_length=1 << 16, description="accepted, without effect")
    strict: Optional[bool] = Field(None, description="accepted, without effect: answers always keep to it")


class ResponseFormat(Body):
    """What the answer has to keep to; reasoning is free. "regex" is this server's own."""

    type: Literal["text", "json_object", "json_schema", "regex"]
    json_schema: Optional[JsonSchema] = None
    pattern: Optional[str] = Field(None, min_length=1)


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: bool = Field(False, description="accepted, without effect")


class Sampling(Body):
    """What all questions may say of their answer. None means the model's own generation_config."""

    temperature: Optional[float] = Field(None, ge=0, le=2)
    top_p: Optional[float] = Field(None, ge=0, le=1)
    top_k: Optional[int] = Field(None, ge=0, le=2**31 - 1)
    min_p: Optional[float] = Field(None, ge=0, le=1)
    repetition_penalty: Optional[float] = Field(None, ge=0.01, le=100)
    seed: Optional[int] = Field(None, ge=-(2**63), lt=2**64, description="without: another one each time")
    stop: Union[None, Stop, Annotated[list[Stop], Field(max_length=MAX_STOPS)]] = None
    logit_bias: Optional[Annotated[dict[str, float], _few(1024)]] = Field(None, max_length=1024)
    ignore_eos: bool = Field(False, description="go on to max_tokens, for measurements")
    stop_at_repetition: bool = Field(True, description="end an answer that goes round in circles")
    timeout: Optional[float] = Field(
        None,
        gt=0,
        le=1e9,
        description="seconds until the answer is ended, if that is before the server's own",
    )


class OpenAIBody(Sampling):
    """model: as /v1/models names it."""

    model: Optional[str] = Field(None, max_length=256)
    max_tokens: Optional[int] = Field(None, ge=1, le=2**31 - 1)
    stream: Optional[bool] = None
    stream_options: Optional[StreamOptions] = None
    n: Optional[Literal[1]] = None
    user: Optional[str] = Field(None, max_length=256, description="accepted, without effect")
    frequency_penalty: Optional[float] = Field(None, ge=0, le=0, description="0 alone")
    presence_penalty: Optional[float] = Field(None, ge=0, le=0, description="0 alone")


class ChatBody(OpenAIBody):
    messages: Messages
    max_completion_tokens: Optional[int] = Field(None, ge=1, le=2**31 - 1)
    logprobs: Optional[bool] = None
    top_logprobs: Optional[int] = Field(None, ge=0, le=20)
    response_format: Optional[ResponseFormat] = None
    thinking_budget: Optional[int] = Field(None, ge=0, le=2**31 - 1)
    metadata: Optional[Annotated[dict[str, str], _few(64)]] = Field(
        None, max_length=64, description="accepted, without effect"
    )
    store: Optional[bool] = Field(None, description="accepted, without effect: nothing is stored")
    tools: Optional[Annotated[list[Any], Field(max_length=0)]] = Field(None, description="none")
    tool_choice: Optional[Literal["none", "auto"]] = Field(None, description="accepted, without effect")


class CompletionBody(OpenAIBody):
    """prompt: a text, taken as it is, or token ids; a list of one of them counts as it."""

    prompt: Union[
        Text,
        Annotated[list[Text], Field(min_length=1, max_length=1)],
        TokenIds,
        Annotated[list[TokenIds], Field(min_length=1, max_length=1)],
    ]
    logprobs: Optional[int] = Field(None, ge=0, le=20)
    echo: Optional[Literal[False]] = None
    best_of: Optional[Literal[1]] = None

    def plain_prompt(self) -> Union[str, list]:
        """The text, or the token ids."""
        prompt = self.prompt
        return prompt[0] if isinstance(prompt, list) and not isinstance(prompt[0], int) else prompt


class ChatEventsBody(Sampling):
    """Of /chat."""

    messages: Messages
    max_new_tokens: Optional[int] = Field(None, ge=1, le=2**31 - 1)
    thinking_budget: Optional[int] = Field(None, ge=0, le=2**31 - 1)
    response_format: Optional[ResponseFormat] = None


class GenerateBody(ChatEventsBody):
    """Of /generate: messages for the model's template, or a prompt that is taken as it is."""

    messages: Optional[Messages] = None
    prompt: Optional[Text] = None


BODIES = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/generate": GenerateBody,
    "/chat": ChatEventsBody,
}
_PARTS = (TextPart, Message, JsonSchema, ResponseFormat, StreamOptions)

# What is expected where pydantic would tell of each kind that a value may have, or of a bare limit.
EXPECTED = {
    "content": 'expected a text, or text parts: [{"type": "text", "text": …}]',
    "prompt": "expected a text, or a list of token ids, or a list of one of these",
    "stop": f"expected a text, or up to {MAX_STOPS}, of 1 to 256 characters",
    "n": "expected 1, the only number of answers here",
    "best_of": "expected 1, the only number of answers here",
    "echo": "expected false: a prompt is not repeated here",
    "tools": "expected none: models get no tools here",
    "frequency_penalty": "expected 0, the only one here; see repetition_penalty",
    "presence_penalty": "expected 0, the only one here; see repetition_penalty",
}


def fields_of(path: str, nested: bool) -> set:
    """Names of fields of a route's body, or of the objects in one."""
    models = _PARTS if nested else [BODIES[path]] if path in BODIES else []
    return {field.alias or name for model in models for name, field in model.model_fields.items()}
