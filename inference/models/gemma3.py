"""Gemma 3 text models: every sixth layer sees the whole context, the others a sliding window.

GGUF holds 1 + w in the norm weights already. The file leaves out what readers must know: local layers
rotate with base 10,000, the activation is GELU in its tanh form, the embedding is multiplied by
sqrt(hidden_size). Halves are rotated, not pairs.
"""

from __future__ import annotations

from dataclasses import replace

from inference.formats.gguf import GGUFFile
from inference.models.common import config_of_layers
from inference.models.config import LayerConfig, ModelConfig, RopeConfig
from inference.models.metadata import Metadata

LOCAL_ROPE_THETA = 10_000.0
GLOBAL_LAYER_EVERY = 6


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Read a Gemma 3 ModelConfig; raises BadModelFile or UnsupportedModel for metadata that cannot be right or used."""
    meta = Metadata(file.metadata, file.path.name)
    head_dim = meta.integer("attention.key_length", 256)
    # Linear scaling (models of 4B and up) is for the global layers alone.
    global_rope = RopeConfig(meta.real("rope.freq_base", 1_000_000.0), head_dim, False, meta.position_scale())
    local_rope = RopeConfig(meta.real("rope.freq_base_swa", LOCAL_ROPE_THETA), head_dim, False)
    local_layer = LayerConfig(window=meta.integer("attention.sliding_window"), rope=local_rope)
    global_layer = LayerConfig(window=None, rope=global_rope)
    num_layers = meta.integer("block_count")
    every = meta.integer("attention.sliding_window_pattern", GLOBAL_LAYER_EVERY)
    layers = tuple(global_layer if (i + 1) % every == 0 else local_layer for i in range(num_layers))
    config = config_of_layers(file, meta, head_dim, "gelu_tanh", layers)
    return replace(config, embedding_scale=config.hidden_size**0.5, qk_norm=True, post_norms=True)
