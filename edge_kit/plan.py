"""What a model takes on a machine that is not at hand: memory, the longest context, the speed it can reach.

All sizes come from the runtime itself, which maps the file, lowers its program and reads no weight.
"""

from __future__ import annotations

from dataclasses import dataclass

from lite_runtime.model import KV_DTYPES, Model

LEAST_CONTEXT = 1024  # tokens: with less, a model is of little use
# Python with its packages, the native library and a tokenizer of 150,000 tokens, as measured on x86-64 Linux.
PROCESS_BYTES = 130_000_000

# As the runtime keeps its cache: tokens per block (kCacheBlock), and the fp16 blocks that an int8 cache has
# beside the int8 ones while a prompt runs (KvCache::missing_bytes with chunks of kChunkRows = 256).
CACHE_BLOCK = 64
FP16_BLOCKS = 256 // CACHE_BLOCK + 2


@dataclass(frozen=True)
class Needs:
    """What a model takes wherever it runs; sizes in bytes.

    n_ctx: the most tokens that the runtime lets a session have. kv_bytes: of one token's keys and values, by
    the cache's type. target: what the file was exported for, None if it does not tell.
    """

    file_bytes: int
    workspace_bytes: int
    parameter_bytes_per_token: int
    n_ctx: int
    kv_bytes: dict
    target: str | None

    def cache_bytes(self, kv_dtype: str, tokens: int) -> int:
        """Memory for the cache of one session."""
        blocks = -(-tokens // CACHE_BLOCK)
        bytes_of = {name: CACHE_BLOCK * per_token for name, per_token in self.kv_bytes.items()}
        if kv_dtype == "f16":
            return blocks * bytes_of["f16"]
        return tokens // CACHE_BLOCK * bytes_of["int8"] + min(blocks, FP16_BLOCKS) * bytes_of["f16"]

    def resident_bytes(self, kv_dtype: str, tokens: int) -> int:
        """All that must stay in memory to decode at full speed behind `tokens` tokens."""
        fixed = self.file_bytes + self.workspace_bytes + PROCESS_BYTES
        return fixed + self.cache_bytes(kv_dtype, tokens)

    def longest_context(self, kv_dtype: str, memory: int) -> int:
        """Most tokens of a session, up to n_ctx, that fit into `memory` bytes; 0 if not even a block does."""
        sizes = [*range(CACHE_BLOCK, self.n_ctx, CACHE_BLOCK), self.n_ctx]
        return max((n for n in sizes if self.resident_bytes(kv_dtype, n) <= memory), default=0)

    def tokens_per_second(self, kv_dtype: str, tokens: int, bandwidth: float) -> float:
        """Decoding speed behind `tokens` tokens if `bandwidth` (bytes per second) alone limits it."""
        return bandwidth / (self.parameter_bytes_per_token + tokens * self.kv_bytes[kv_dtype])


@dataclass(frozen=True)
class Fit:
    """A model on a machine with `ram` bytes, with one type of cache.

    n_ctx: most tokens of a session, 0 for none. missing: bytes that LEAST_CONTEXT lacks, or the model's own
    limit if that is lower. speeds: tokens per second (lowest, highest) by length of the context; {} without a
    bandwidth.
    """

    ram: int
    kv_dtype: str
    n_ctx: int
    missing: int
    speeds: dict

    @property
    def fits(self) -> bool:
        return self.missing == 0


def read_needs(path: str) -> Needs:
    """Opens the file with each type of cache; it may be larger than this machine's memory.

    Raises FileFormatError, UnsupportedError, EdgeKitError.
    """
    kv_bytes = {}
    for kv_dtype in KV_DTYPES:
        with Model(path, 1, None, "int8", None, kv_dtype) as model:
            info, target = model.info, model.manifest.get("target")
        kv_bytes[kv_dtype] = info.kv_bytes_per_token
    return Needs(
        info.file_bytes,
        info.workspace_bytes,
        info.parameter_bytes_per_token,
        info.n_ctx,
        kv_bytes,
        target if isinstance(target, str) else None,
    )


def fit(needs: Needs, ram: int, system_bytes: int, kv_dtype: str, bandwidth: tuple | None) -> Fit:
    """How `needs` fits into `ram` bytes, of which the system keeps `system_bytes`.

    bandwidth: (lowest, highest) bytes per second, None if it is unknown.
    """
    free = ram - system_bytes
    n_ctx = needs.longest_context(kv_dtype, free)
    wanted = min(LEAST_CONTEXT, needs.n_ctx)
    lengths = {0, wanted, n_ctx} if n_ctx >= wanted else {0, wanted}
    speeds = {
        length: tuple(needs.tokens_per_second(kv_dtype, length, rate) for rate in bandwidth)
        for length in (sorted(lengths) if bandwidth else ())
    }
    return Fit(ram, kv_dtype, n_ctx, max(0, needs.resident_bytes(kv_dtype, wanted) - free), speeds)
