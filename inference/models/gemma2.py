"""Gemma 2: soft caps on scores and logits, norms before and after each part, a window on every other layer.

The embedding is multiplied by sqrt(hidden_size). Safetensors hold the norms as w - 1, GGUF as w. GGUF names neither
the base of the rope nor what the scores are divided by.
"""

from __future__ import annotations

from dataclasses import replace

from inference.formats.gguf import GGUFFile
from inference.models.common import HF_NAMES, POST_NORM_PARTS, Family, gguf_config, hf_config, hf_windows, with_windows
from inference.models.config import ModelConfig
from inference.models.fields import Fields

WINDOW = 4096
"""Older GGUF files do not name it."""
NAMES = replace(HF_NAMES, parts={**HF_NAMES.parts, **POST_NORM_PARTS}, norm_offset=1.0)


def config_from_hf(fields: Fields) -> ModelConfig:
    config = with_windows(hf_config(fields), hf_windows(fields, lambda layer: layer % 2 == 0))
    return replace(
        with_gemma_norms(config),
        attention_scale=fields.positive("query_pre_attn_scalar") ** -0.5,
        attention_softcap=soft_cap(fields, "attn_logit_softcapping"),
        logit_softcap=soft_cap(fields, "final_logit_softcapping"),
    )


def config_from_gguf(file: GGUFFile, fields: Fields) -> ModelConfig:
    config = gguf_config(file, fields, activation="gelu_tanh")
    window = fields.integer("attention.sliding_window", WINDOW)
    config = with_windows(config, [window if layer % 2 == 0 else None for layer in range(config.num_layers)])
    return replace(
        with_gemma_norms(config),
        attention_scale=gguf_attention_scale(fields, config),
        attention_softcap=soft_cap(fields, "attn_logit_softcapping"),
        logit_softcap=soft_cap(fields, "final_logit_softcapping"),
    )


def with_gemma_norms(config: ModelConfig) -> ModelConfig:
    """What all Gemmas share: norms after each part, and the embedding's scale."""
    return replace(config, embedding_scale=config.hidden_size**0.5, post_norms=True)


def gguf_attention_scale(fields: Fields, config: ModelConfig) -> float:
    """Only the 27B models, whose heads have 128 columns, divide scores by another root than that of head_dim."""
    divisor = config.hidden_size / config.num_heads if config.head_dim == 128 else config.head_dim
    return fields.positive("attention.scale", divisor**-0.5)


def soft_cap(fields: Fields, key: str) -> float | None:
    """A cap, or None where there is none."""
    return fields.positive(key) if fields.has(key) else None


FAMILY = Family(
    config_from_hf,
    config_from_gguf,
    NAMES,
    hf_defaults={
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "query_pre_attn_scalar": 256,
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
)
