"""Answers that keep to a JSON schema or a regular expression, by llguidance (extra `serve`).

    constraint = Constraint.json_schema(model, {"type": "object", …})
    for item in session.generate(prompt, constraint=constraint): …

llguidance tells which tokens may come next. What a token stands for it learns from the detokenizer, so that
what it checks is the text that is shown. End tokens may come where the text is complete.
"""

from __future__ import annotations

import json
import threading
import weakref

import numpy as np

from .detokenizer import TokenBytes
from .errors import UsageError
from .output_control import LOWEST

# What llguidance bounds by no limit of its own. A long text makes single steps slow, and a batch waits for
# them. Nested schemas are compiled by a recursion, which takes stack for each level: past its end the whole
# process ends.
MOST_CHARACTERS = 1 << 15
MOST_LEVELS = 600


class Constraint:
    """A compiled grammar. It may be kept and used for any number of answers: each begins at its start."""

    def __init__(self, model, matcher):
        """Made by `json_schema` and `regex`. matcher: llguidance's, at the place that it has come to."""
        self._model = model
        self._matcher = matcher

    @classmethod
    def json_schema(cls, model, schema) -> Constraint:
        """The text is JSON by `schema`, a dict or its JSON text. Raises UsageError if it is no schema or has
        what llguidance cannot do, and if llguidance is missing."""
        library = _library()
        try:
            schema = json.loads(schema) if isinstance(schema, str) else schema
            text = json.dumps(schema)
            _check_length(text, "JSON schema")
            _check_levels(schema)
            grammar = library.LLMatcher.grammar_from_json_schema(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"the JSON schema cannot be read: {error}") from None
        return cls(model, _compile(model, grammar, "JSON schema"))

    @classmethod
    def regex(cls, model, pattern: str) -> Constraint:
        """The whole text matches `pattern` (Rust's syntax, without look-around). Raises as `json_schema`."""
        library = _library()
        if not isinstance(pattern, str):
            raise UsageError(f"regular expression {pattern!r}, expected a text")
        _check_length(pattern, "regular expression")
        try:
            grammar = library.LLMatcher.grammar_from_regex(pattern)
        except ValueError as error:  # a lone surrogate
            raise UsageError(f"the regular expression cannot be read: {error}") from None
        return cls(model, _compile(model, grammar, "regular expression"))

    def begin(self) -> Constraint:
        """One for an answer of its own."""
        return Constraint(self._model, self._matcher.deep_copy())

    def mask(self, logits):
        """A copy of the logits [V], LOWEST where a token may not come next."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.unpackbits(bits, count=len(logits), bitorder="little").view(bool)
        for end in self._model.eos_ids:
            if end < len(logits):
                allowed[end] = self._matcher.is_accepting()
        if not allowed.any():
            raise UsageError("the constraint allows no token of this model here; loosen it")
        return np.where(allowed, logits, LOWEST)

    def accept(self, token: int) -> None:
        """The text goes on with `token`."""
        self._matcher.consume_token(token)
        self._check()

    @property
    def complete(self) -> bool:
        """Whether the text is complete and nothing may follow it."""
        return self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError(f"the constraint cannot go on: {_first_line(self._matcher.get_error())}")


def _library():
    try:
        import llguidance
    except ImportError:
        raise UsageError(
            "answers by a JSON schema or a regular expression need llguidance: pip install llguidance"
        ) from None
    return llguidance


def _check_length(text: str, kind: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"the {kind} has {len(text)} characters, {MOST_CHARACTERS} at most: shorten it")


def _check_levels(schema) -> None:
    """Each $ref leads to a schema that may be nested as deep as the deepest, and that may have another one:
    no way through them all is longer than this product."""
    references, n_nested, inner = set(), 0, [schema]
    while level := [value for value in inner if isinstance(value, (dict, list, tuple))]:
        n_nested, inner = n_nested + 1, []
        for value in level:
            inner += value.values() if isinstance(value, dict) else value
            if isinstance(value, dict) and isinstance(value.get("$ref"), str):
                references.add(value["$ref"])
    n_references = len(references)
    if (n_references + 1) * n_nested > MOST_LEVELS:
        raise UsageError(
            f"the JSON schema is nested {n_nested} deep and refers to {n_references} others, "
            f"{MOST_LEVELS} levels at most: write it flatter, or with fewer $ref"
        )


def _compile(model, grammar: str, kind: str):
    matcher = _library().LLMatcher(_tokenizer(model), grammar, log_level=0)
    if matcher.is_error():
        raise UsageError(f"the {kind} cannot be used: {_first_line(matcher.get_error())}")
    return matcher


def _first_line(text: str) -> str:
    """Of an error; where that ends with a colon, what a parser says at the end of its report."""
    lines = text.strip().split("\n")
    if not lines[0].endswith(":"):
        return lines[0]
    return " ".join([lines[0], *(line.strip() for line in lines[1:] if line.startswith("error"))])


_tokenizers = weakref.WeakKeyDictionary()  # model -> llguidance's view of its vocabulary: 1 s for a large one
_tokenizers_lock = threading.Lock()


def _tokenizer(model):
    with _tokenizers_lock:
        if model not in _tokenizers:
            library = _library()
            vocabulary = _Vocabulary(model)
            _tokenizers[model] = library.LLTokenizer(library.TokenizerWrapper(vocabulary))
        return _tokenizers[model]


class _Vocabulary:
    """A model's tokens as llguidance reads them. It knows one end token: one of its own behind the others."""

    def __init__(self, model):
        token_bytes = TokenBytes(model.text.tokenizer)
        self.tokens = [token_bytes(token) for token in range(model.info.n_vocab)]
        self.eos_token_id = len(self.tokens)
        self.tokens.append(b"")
        self.bos_token_id = None
        self.special_token_ids = [self.eos_token_id]
        self._encode = model.text.encode

    def __call__(self, text) -> list:
        """Token ids of a text."""
        return self._encode(text if isinstance(text, str) else text.decode("utf-8"), bos=False)
