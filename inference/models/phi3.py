"""Phi 3 and 4 mini: q, k and v stored as one matrix, gate and up as another; only part of a head may be rotated.

The models with long contexts have LongRoPE's factors, in GGUF as two tensors.
"""

from __future__ import annotations

from dataclasses import replace

from inference.formats.gguf import GGUFFile
from inference.models.common import GGUF_NAMES, HF_NAMES, Family, gguf_config, hf_config, hf_windows, with_windows
from inference.models.config import ModelConfig
from inference.models.fields import Fields
from inference.models.rope_scaling import hf_long_rope
from inference.models.weights import read_vector

HF_PARTS = dict.fromkeys(("attention.q", "attention.k", "attention.v"), "self_attn.qkv_proj") | dict.fromkeys(
    ("feed_forward.gate", "feed_forward.up"), "mlp.gate_up_proj"
)
GGUF_PARTS = dict.fromkeys(("attention.q", "attention.k", "attention.v"), "attn_qkv") | dict.fromkeys(
    ("feed_forward.gate", "feed_forward.up"), "ffn_up"
)


def config_from_hf(fields: Fields) -> ModelConfig:
    config = with_windows(hf_config(fields), hf_windows(fields, lambda layer: True))
    return replace(config, long_rope=hf_long_rope(fields, config.head_dim))


def config_from_gguf(file: GGUFFile, fields: Fields) -> ModelConfig:
    config = gguf_config(file, fields)
    if "rope_factors_long.weight" not in file.tensors or "rope_factors_short.weight" not in file.tensors:
        return config
    rope = config.layers[0].rope
    short, long = (
        replace(rope, frequency_factors=tuple(read_vector(file, f"rope_factors_{kind}.weight").tolist()))
        for kind in ("short", "long")
    )
    original = fields.integer("rope.scaling.original_context_length", config.max_context)
    layers = tuple(replace(layer, rope=short) for layer in config.layers)
    return replace(config, layers=layers, long_rope=(original, long))


FAMILY = Family(
    config_from_hf,
    config_from_gguf,
    replace(HF_NAMES, parts={**HF_NAMES.parts, **HF_PARTS}),
    replace(GGUF_NAMES, parts={**GGUF_NAMES.parts, **GGUF_PARTS}),
    hf_defaults={"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
)
