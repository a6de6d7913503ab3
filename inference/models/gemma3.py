"""Gemma 3 text models: every sixth layer sees the whole context, the others a window, with a rope of their own.

Like Gemma 2 without soft caps, but with norms of each head's q and k. The scaling of the rope (models of 4B and up) is
for the layers that see everything alone.
"""

from __future__ import annotations

from dataclasses import replace

from inference.formats.gguf import GGUFFile
from inference.models import gemma2
from inference.models.common import Family, gguf_config, hf_config, hf_windows, with_windows
from inference.models.config import ModelConfig, RopeConfig
from inference.models.fields import Fields
from inference.models.rope_scaling import hf_rope

LOCAL_ROPE_THETA = 10_000.0
GLOBAL_LAYER_EVERY = 6


def config_from_hf(fields: Fields) -> ModelConfig:
    if fields.flag("use_bidirectional_attention"):
        raise fields.unsupported("use_bidirectional_attention", True, "false: models that write text")
    every = fields.integer("sliding_window_pattern", GLOBAL_LAYER_EVERY)
    config = with_windows(
        hf_config(fields, "full_attention"), hf_windows(fields, lambda layer: (layer + 1) % every != 0)
    )
    nested = fields.group("rope_parameters").has("sliding_attention")
    local = (
        hf_rope(fields, config.head_dim, "sliding_attention")
        if nested
        else RopeConfig(fields.positive("rope_local_base_freq", LOCAL_ROPE_THETA), config.head_dim, interleaved=False)
    )
    return replace(
        _with_local_rope(config, local),
        attention_scale=fields.positive("query_pre_attn_scalar") ** -0.5,
        attention_softcap=gemma2.soft_cap(fields, "attn_logit_softcapping"),
        logit_softcap=gemma2.soft_cap(fields, "final_logit_softcapping"),
    )


def config_from_gguf(file: GGUFFile, fields: Fields) -> ModelConfig:
    config = gguf_config(file, fields, activation="gelu_tanh", theta=1_000_000.0)
    window = fields.integer("attention.sliding_window")
    every = fields.integer("attention.sliding_window_pattern", GLOBAL_LAYER_EVERY)
    config = with_windows(config, [None if (i + 1) % every == 0 else window for i in range(config.num_layers)])
    local = RopeConfig(fields.positive("rope.freq_base_swa", LOCAL_ROPE_THETA), config.head_dim, interleaved=False)
    return replace(
        _with_local_rope(config, local),
        attention_scale=gemma2.gguf_attention_scale(fields, config),
        attention_softcap=gemma2.soft_cap(fields, "attn_logit_softcapping"),
        logit_softcap=gemma2.soft_cap(fields, "final_logit_softcapping"),
    )


def _with_local_rope(config: ModelConfig, local: RopeConfig) -> ModelConfig:
    layers = tuple(layer if layer.window is None else replace(layer, rope=local) for layer in config.layers)
    return replace(gemma2.with_gemma_norms(config), layers=layers, qk_norm="head")


TEXT = Family(
    config_from_hf,
    config_from_gguf,
    gemma2.NAMES,
    # Folders of models that see images leave out all of these for the 4B model, most of them for the others.
    hf_defaults={
        "model_type": "gemma3_text",
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
)
WITH_IMAGES = replace(TEXT, hf_group="text_config")
