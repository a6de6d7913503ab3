"""Mistral: llama with a sliding window on every layer, in its first version. GGUF files call it llama."""

from __future__ import annotations

from inference.models import llama
from inference.models.common import Family, hf_config, hf_windows, with_windows
from inference.models.config import ModelConfig
from inference.models.fields import Fields


def config_from_hf(fields: Fields) -> ModelConfig:
    return with_windows(hf_config(fields), hf_windows(fields, lambda layer: True))


FAMILY = Family(
    config_from_hf,
    llama.config_from_gguf,
    hf_defaults={"num_key_value_heads": 8, "max_position_embeddings": 131_072, "sliding_window": 4096},
    gguf_interleaved=True,
)
