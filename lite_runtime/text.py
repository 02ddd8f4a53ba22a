"""The text side of a model: tokenizer and chat template from the bundle.

Exactly one BOS: `encode(text)` writes it where the tokenizer does, unless the text begins with it; a rendered
template holds its own, and is encoded without.
"""

from __future__ import annotations

import datetime
import json

from .bundle import Bundle
from .detokenizer import StreamingDetokenizer, TokenBytes
from .errors import FileFormatError, UnsupportedError, UsageError

# Characters. `encode` holds the interpreter's lock, too long for a long text; `encode_batch` does not,
# but starts threads.
_LONG = 1 << 14

# What tokenizer_config.json may name, and a template may use.
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Text:
    """Tokenizer, template and detokenizer of one bundle."""

    def __init__(self, bundle: Bundle):
        """Raises FileFormatError if the bundle has no tokenizer or a damaged one."""
        from tokenizers import Tokenizer

        self.path = bundle.path
        content = bundle.read("tokenizer.json")
        try:
            self.tokenizer = Tokenizer.from_str(content.decode("utf-8"))
        except Exception as error:  # tokenizers raises plain Exception
            raise FileFormatError(
                f"{self.path}: tokenizer.json behind the tensors cannot be read: {error}"
            ) from None
        config = bundle.read_json("tokenizer_config.json")
        self.special_tokens = _special_tokens(config)
        self.bos_id = self._id_of("bos_token")
        self.eos_id = self._id_of("eos_token")
        self._adds_bos = self._bos_rule(config)
        self._token_bytes = None
        self.template_source = _chat_template(config, bundle)
        self._template = None

    def encode(self, text: str, bos: bool = True) -> list:
        """Token ids of `text`; with `bos`, one beginning-of-sequence token where the model has it."""
        if not isinstance(text, str):
            raise UsageError(f"a {type(text).__name__} to tokenize, expected a text (str)")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(
                f"the text is not valid Unicode at character {error.start}: {error.reason}"
            ) from None
        ids = self._ids_of(text, add_special_tokens=False)
        if bos and self._adds_bos and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def decode(self, ids) -> str:
        """Text of `ids` without special tokens."""
        return self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def detokenizer(self) -> StreamingDetokenizer:
        """A new streaming detokenizer."""
        return StreamingDetokenizer(self.token_bytes)

    @property
    def token_bytes(self) -> TokenBytes:
        """Called with a token's id: the UTF-8 bytes that it stands for."""
        if self._token_bytes is None:
            self._token_bytes = TokenBytes(self.tokenizer)
        return self._token_bytes

    def render(self, messages, add_generation_prompt: bool = True, **variables) -> str:
        """The model's own chat template over messages, dicts with "role" and "content"."""
        if self.template_source is None:
            raise UnsupportedError(
                f"{self.path}: the model has no chat template; send the prompt as it is (edge-kit run --raw, "
                "session.generate(text) in Python)"
            )
        if self._template is None:
            self._template = _compile(self.template_source, self.path)
        context = {"tools": None, "documents": None, **self.special_tokens, **variables}
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **context
            )
        except Exception as error:  # a template is the model's own program: it may fail in any way
            reason = str(error) or type(error).__name__
            raise UsageError(f"the model's chat template refuses these messages: {reason}") from None

    def encode_chat(self, messages, add_generation_prompt: bool = True, **variables) -> list:
        """Token ids of `render(...)`: the template writes BOS itself."""
        return self.encode(self.render(messages, add_generation_prompt, **variables), bos=False)

    def _id_of(self, name: str):
        token = self.special_tokens.get(name)
        return None if token is None else self.tokenizer.token_to_id(token)

    def _bos_rule(self, config: dict) -> bool:
        if self.bos_id is None:
            return False
        if config.get("add_bos_token") is not None:
            return bool(config["add_bos_token"])
        return self._ids_of("")[:1] == [self.bos_id]  # what tokenizer.json's post-processor does

    def _ids_of(self, text: str, **options) -> list:
        try:
            if len(text) > _LONG:
                return self.tokenizer.encode_batch([text], **options)[0].ids
            return self.tokenizer.encode(text, **options).ids
        except BaseException as error:
            # What tokenizers takes when it reads the file may still end it in a panic, which is no Exception.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise FileFormatError(
                f"{self.path}: tokenizer.json behind the tensors cannot be used: {error}"
            ) from None


def _special_tokens(config: dict) -> dict:
    """Name -> text. A token is written as a string or as an object with its content."""
    tokens = {}
    for name in _SPECIAL_TOKENS:
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _chat_template(config: dict, bundle: Bundle):
    """The template's source: chat_template.jinja, or tokenizer_config.json's key (of a list, the default)."""
    if "chat_template.jinja" in bundle:
        return bundle.read("chat_template.jinja").decode("utf-8", "replace")
    found = config.get("chat_template")
    if isinstance(found, list):
        entries = [entry for entry in found if isinstance(entry, dict) and entry.get("name") == "default"]
        found = entries[-1].get("template") if entries else None
    return found if isinstance(found, str) else None


def _compile(source: str, path: str):
    """The template in the environment that transformers gives it, sandboxed."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except Exception as error:  # Jinja compiles to Python, which has limits and errors of its own
        raise FileFormatError(f"{path}: the model's chat template is no valid Jinja: {error}") from None


def _to_json(value, indent=None) -> str:
    # Jinja's own filter escapes <, > and & for HTML, which a model must not see.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str):
    from jinja2 import TemplateError

    raise TemplateError(message)
