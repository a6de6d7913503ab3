"""Qwen 2 and 2.5: biases on q, k and v. Qwen 3: none of these, but norms of each head's q and k.

A window in config.json counts only with `use_sliding_window`, and then from layer `max_window_layers` on.
"""

from __future__ import annotations

from dataclasses import replace

from inference.formats.gguf import GGUFFile
from inference.models.common import MAX_LAYERS, PROJECTIONS, Family, gguf_config, hf_config, hf_windows, with_windows
from inference.models.config import ModelConfig
from inference.models.fields import Fields


def qwen_windows(fields: Fields) -> list[int | None]:
    """Each layer's window."""
    if not fields.flag("use_sliding_window"):
        return [None] * fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    first = fields.integer("max_window_layers", minimum=0)
    return hf_windows(fields, lambda layer: layer >= first)


def qwen2_from_hf(fields: Fields) -> ModelConfig:
    config = with_windows(hf_config(fields), qwen_windows(fields))
    return replace(config, biases=frozenset(PROJECTIONS[:3]))


def qwen2_from_gguf(file: GGUFFile, fields: Fields) -> ModelConfig:
    return gguf_config(file, fields)


def qwen3_from_hf(fields: Fields) -> ModelConfig:
    config = with_windows(hf_config(fields), qwen_windows(fields))
    biases = PROJECTIONS if fields.flag("attention_bias") else ()
    return replace(config, biases=frozenset(biases), qk_norm="head")


def qwen3_from_gguf(file: GGUFFile, fields: Fields) -> ModelConfig:
    return replace(gguf_config(file, fields), qk_norm="head")


HF_DEFAULTS = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
QWEN2 = Family(qwen2_from_hf, qwen2_from_gguf, hf_defaults=HF_DEFAULTS)
QWEN3 = Family(qwen3_from_hf, qwen3_from_gguf, hf_defaults=HF_DEFAULTS | {"head_dim": 128})
