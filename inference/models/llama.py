"""The llama family: Llama 1 to 3, SmolLM2, TinyLlama, and what else calls itself llama.

GGUF converters permute the rows of q and k so that rotary embedding acts on adjacent pairs. Mistral files call
themselves llama in GGUF too.
"""

from __future__ import annotations

from dataclasses import replace

from inference.formats.gguf import GGUFFile
from inference.models.common import FEED_FORWARD, PROJECTIONS, Family, gguf_config, hf_config
from inference.models.config import ModelConfig
from inference.models.fields import Fields


def config_from_hf(fields: Fields) -> ModelConfig:
    biases = (PROJECTIONS if fields.flag("attention_bias") else ()) + (FEED_FORWARD if fields.flag("mlp_bias") else ())
    return replace(hf_config(fields), biases=frozenset(biases))


def config_from_gguf(file: GGUFFile, fields: Fields) -> ModelConfig:
    if fields.integer("expert_count", 0, minimum=0):
        raise fields.unsupported("expert_count", fields.integer("expert_count"), "0: not Mixtral's experts")
    return gguf_config(file, fields)


FAMILY = Family(config_from_hf, config_from_gguf, hf_defaults={"max_position_embeddings": 2048}, gguf_interleaved=True)
