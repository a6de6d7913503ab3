"""SmolLM3: llama, but every fourth layer has no position embedding. GGUF does not say which: it is every fourth."""

from __future__ import annotations

from inference.formats.gguf import GGUFFile
from inference.models import llama
from inference.models.common import Family, hf_windows, with_windows, without_rope
from inference.models.config import ModelConfig
from inference.models.fields import Fields

NO_ROPE_EVERY = 4


def config_from_hf(fields: Fields) -> ModelConfig:
    config = llama.config_from_hf(fields)
    every = fields.integer("no_rope_layer_interval", NO_ROPE_EVERY)
    turned = [(layer + 1) % every != 0 for layer in range(config.num_layers)]
    if fields.has("no_rope_layers"):
        # Despite its name, a 1 in this list means a layer with rope.
        turned = [bool(mark) for mark in fields.items("no_rope_layers")]
    if len(turned) != config.num_layers:
        raise fields.wrong("no_rope_layers", turned, f"one number for each of {config.num_layers} layers")
    if fields.flag("use_sliding_window"):
        config = with_windows(config, hf_windows(fields, lambda layer: not turned[layer]))
    return without_rope(config, turned)


def config_from_gguf(file: GGUFFile, fields: Fields) -> ModelConfig:
    config = llama.config_from_gguf(file, fields)
    return without_rope(config, [(layer + 1) % NO_ROPE_EVERY != 0 for layer in range(config.num_layers)])


FAMILY = Family(
    config_from_hf,
    config_from_gguf,
    hf_defaults={"num_key_value_heads": 4, "max_position_embeddings": 32_768, "rope_theta": 2_000_000.0},
    gguf_interleaved=True,
)
