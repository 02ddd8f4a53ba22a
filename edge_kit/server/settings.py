"""What a server is told when it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional

from lite_runtime.errors import UsageError, whole_number
from lite_runtime.model import KV_DTYPES

MEGABYTE = 1 << 20
KEY_VARIABLE = "EDGE_KIT_API_KEY"  # of the environment: the API key where none is given


@dataclass(frozen=True)
class Settings:
    """Limits hold for each request. Raises UsageError for what cannot be.

    file: a .nb file; name: of the model, None = the one in the file's manifest.
    api_key: what a client must send as a bearer token, None = nothing.
    hosts: names that a Host header may give beside addresses and localhost; "*" = any.
    threads, n_ctx, kv_dtype: as in lite_runtime.load.
    max_batch, prefill_chunk, max_queue: as in Batcher.
    deadline: seconds from a request's arrival until its answer is ended.
    max_prompt_tokens: None = what the context holds.
    max_new_tokens: None = the model's generation_config, else what the context holds.
    thinking_budget: most tokens of reasoning where a request does not say; None = any number.
    max_body_mb: of a request's body. cache_mb: of the caches that are kept for later turns.
    answer_cache_mb: of greedy answers that are kept, to be given again to the same request; 0 = none.
    log_prompts: whether the log tells what was asked and answered.
    """

    file: str
    name: Optional[str] = None
    api_key: Optional[str] = None
    hosts: tuple = ()
    threads: Optional[int] = None
    n_ctx: Optional[int] = None
    kv_dtype: str = KV_DTYPES[0]
    max_batch: int = 8
    prefill_chunk: int = 64
    max_queue: int = 64
    deadline: float = 600.0
    max_prompt_tokens: Optional[int] = None
    max_new_tokens: Optional[int] = None
    thinking_budget: Optional[int] = None
    max_body_mb: float = 1.0
    cache_mb: float = 512.0
    answer_cache_mb: float = 0.0
    log_prompts: bool = False

    def __post_init__(self):
        whole_number("max_batch", self.max_batch, 1, 1024)
        whole_number("prefill_chunk", self.prefill_chunk, 1, 1 << 20)
        whole_number("max_queue", self.max_queue, 0, 1 << 20)
        for name, low in (("max_prompt_tokens", 1), ("max_new_tokens", 1), ("thinking_budget", 0)):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), low, (1 << 31) - 1)
        for name in ("deadline", "max_body_mb", "cache_mb", "answer_cache_mb"):
            value = getattr(self, name)
            if not 0 <= value < math.inf or (value == 0 and name in ("deadline", "max_body_mb")):
                raise UsageError(f"{name} {value!r}, expected a number from 0 on, and a limit above it")
        key = self.api_key
        if key is not None and not (key.isascii() and key.isprintable() and key and " " not in key):
            raise UsageError("the API key must be printable ASCII without spaces, and not empty")
