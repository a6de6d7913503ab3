"""Qwen 3 MoE: qwen3 with mixtures of experts as feed-forward parts, in all layers or in most."""

from __future__ import annotations

from inference.formats.gguf import GGUFFile
from inference.models.common import Family, with_experts
from inference.models.config import Experts, ModelConfig
from inference.models.fields import Fields
from inference.models.qwen import HF_DEFAULTS, qwen3_from_gguf, qwen3_from_hf


def config_from_hf(fields: Fields) -> ModelConfig:
    """Layers are mixtures but for those in `mlp_only_layers` and those that `decoder_sparse_step` leaves out."""
    config = qwen3_from_hf(fields)
    experts = Experts(
        count=fields.integer("num_experts", fields.integer("num_local_experts", 128)),
        per_token=fields.integer("num_experts_per_tok"),
        intermediate_size=fields.integer("moe_intermediate_size"),
        normalised=fields.flag("norm_topk_prob"),
    )
    dense = fields.items("mlp_only_layers") if fields.has("mlp_only_layers") else []
    step = fields.integer("decoder_sparse_step", 1)
    mixed = [layer not in dense and (layer + 1) % step == 0 for layer in range(config.num_layers)]
    return with_experts(config, experts, mixed)


def config_from_gguf(file: GGUFFile, fields: Fields) -> ModelConfig:
    """Layers are mixtures where the file has a router for them."""
    config = qwen3_from_gguf(file, fields)
    experts = Experts(
        count=fields.integer("expert_count"),
        per_token=fields.integer("expert_used_count"),
        intermediate_size=fields.integer("expert_feed_forward_length"),
        normalised=fields.flag("expert_weights_norm", True),
    )
    mixed = [f"blk.{layer}.ffn_gate_inp.weight" in file.tensors for layer in range(config.num_layers)]
    return with_experts(config, experts, mixed)


FAMILY = Family(
    config_from_hf,
    config_from_gguf,
    hf_defaults=HF_DEFAULTS | {"num_key_value_heads": 4, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
)
