"""Granite 3: llama with multipliers on the embedding, the scores, the residual stream and the logits."""

from __future__ import annotations

from dataclasses import replace

from inference.formats.gguf import GGUFFile
from inference.models import llama
from inference.models.common import Family
from inference.models.config import ModelConfig
from inference.models.fields import Fields


def config_from_hf(fields: Fields) -> ModelConfig:
    return replace(
        llama.config_from_hf(fields),
        embedding_scale=fields.positive("embedding_multiplier", 1.0),
        attention_scale=fields.positive("attention_multiplier", 1.0),
        residual_scale=fields.positive("residual_multiplier", 1.0),
        logit_scale=1 / fields.positive("logits_scaling", 1.0),
    )


def config_from_gguf(file: GGUFFile, fields: Fields) -> ModelConfig:
    return replace(
        llama.config_from_gguf(file, fields),
        embedding_scale=fields.positive("embedding_scale", 1.0),
        residual_scale=fields.positive("residual_scale", 1.0),
        logit_scale=1 / fields.positive("logit_scale", 1.0),
    )


FAMILY = Family(config_from_hf, config_from_gguf, hf_defaults={"max_position_embeddings": 2048}, gguf_interleaved=True)
