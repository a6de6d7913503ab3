"""SmolLM3: llama, but every fourth layer has no position embedding. GGUF does not say which: it is every fourth."""

from __future__ import annotations

from inference.formats.gguf import GGUFFile
from inference.models import llama
from inference.models.common import Family, with_windows, without_rope
from inference.models.config import ModelConfig
from inference.models.fields import Fields
from inference.models.qwen import qwen_windows

NO_ROPE_EVERY = 4


def config_from_hf(fields: Fields) -> ModelConfig:
    config = with_windows(llama.config_from_hf(fields), qwen_windows(fields))
    if not fields.has("no_rope_layers"):
        every = fields.integer("no_rope_layer_interval", NO_ROPE_EVERY)
        return without_rope(config, [(layer + 1) % every != 0 for layer in range(config.num_layers)])
    # Despite its name, a 1 in this list means a layer with rope.
    marks = fields.items("no_rope_layers")
    if len(marks) != config.num_layers:
        raise fields.wrong("no_rope_layers", marks, f"one number for each of {config.num_layers} layers")
    return without_rope(config, [bool(mark) for mark in marks])


def config_from_gguf(file: GGUFFile, fields: Fields) -> ModelConfig:
    config = llama.config_from_gguf(file, fields)
    return without_rope(config, [(layer + 1) % NO_ROPE_EVERY != 0 for layer in range(config.num_layers)])


FAMILY = Family(config_from_hf, config_from_gguf)
