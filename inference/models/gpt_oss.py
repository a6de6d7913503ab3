"""GPT-OSS: every layer a mixture of experts, a window on every other layer, attention sinks, biases everywhere.

Folders that hold its experts as floats store them as columns by rows, gate's and up's in turn. GGUF says neither what
the gate is clamped to nor that the ends of YaRN's ramp are not rounded.
"""

from __future__ import annotations

from dataclasses import replace

from inference.formats.gguf import GGUFFile
from inference.models.common import (
    HF_NAMES,
    PROJECTIONS,
    Family,
    gguf_config,
    hf_config,
    hf_windows,
    with_experts,
    with_windows,
)
from inference.models.config import ClampedSwiglu, Experts, ModelConfig
from inference.models.fields import Fields
from inference.models.weights import GGUF_NAMES

EXPERT_PARTS = ("feed_forward.expert_gate", "feed_forward.expert_up", "feed_forward.expert_down")
HF_EXPERTS = dict(zip(EXPERT_PARTS, ("gate_up_proj", "gate_up_proj", "down_proj"), strict=True))
ALPHA, LIMIT = 1.702, 7.0


def config_from_hf(fields: Fields) -> ModelConfig:
    config = with_windows(hf_config(fields), hf_windows(fields, lambda layer: layer % 2 == 0))
    biased = PROJECTIONS if fields.flag("attention_bias", True) else ()
    gate = ClampedSwiglu(fields.positive("swiglu_alpha", ALPHA), fields.positive("swiglu_limit", LIMIT))
    return _with_mixtures(
        config, biased, gate, fields.integer("num_local_experts"), fields.integer("num_experts_per_tok")
    )


def config_from_gguf(file: GGUFFile, fields: Fields) -> ModelConfig:
    config = gguf_config(file, fields, yarn_truncate=False)
    windows = [layer.window if index % 2 == 0 else None for index, layer in enumerate(config.layers)]
    config = replace(
        with_windows(config, windows),
        intermediate_size=fields.integer("expert_feed_forward_length", config.intermediate_size),
    )
    count, per_token = fields.integer("expert_count"), fields.integer("expert_used_count")
    return _with_mixtures(config, PROJECTIONS, ClampedSwiglu(ALPHA, LIMIT), count, per_token)


def _with_mixtures(
    config: ModelConfig, biased: tuple[str, ...], gate: ClampedSwiglu, count: int, per_token: int
) -> ModelConfig:
    experts = Experts(count, per_token, config.intermediate_size, normalised=True)
    config = with_experts(config, experts, [True] * config.num_layers)
    biases = frozenset((*biased, "feed_forward.router", *EXPERT_PARTS))
    return replace(config, activation=gate, biases=biases, attention_sinks=True)


FAMILY = Family(
    config_from_hf,
    config_from_gguf,
    replace(
        HF_NAMES,
        parts={**HF_NAMES.parts, "feed_forward.router": "mlp.router"},
        whole={
            "attention.sinks": "self_attn.sinks",
            **{part: f"mlp.experts.{name}" for part, name in HF_EXPERTS.items()},
            **{f"{part}.bias": f"mlp.experts.{name}_bias" for part, name in HF_EXPERTS.items()},
        },
        alternating=True,
        transposed=frozenset(EXPERT_PARTS),
    ),
    replace(GGUF_NAMES, parts={**GGUF_NAMES.parts, "feed_forward.norm": "post_attention_norm"}),
    hf_defaults={"max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "sliding_window": 128},
)
