"""Gemma 3 text models: every sixth layer sees the whole context, the others a sliding window.

GGUF holds 1 + w in the norm weights already. The file leaves out what readers must know: local layers
rotate with base 10,000, the activation is GELU in its tanh form, the embedding is multiplied by
sqrt(hidden_size). Halves are rotated, not pairs.
"""

from __future__ import annotations

from inference.formats.gguf import GGUFFile
from inference.models.config import LayerConfig, ModelConfig, RopeConfig
from inference.models.metadata import Metadata
from inference.models.weights import gguf_weight_names

LOCAL_ROPE_THETA = 10_000.0
GLOBAL_LAYER_EVERY = 6


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Read a Gemma 3 ModelConfig; raises BadModelFile or UnsupportedModel for metadata that cannot be right or used."""
    meta = Metadata(file.metadata, file.path.name)
    hidden_size = meta.integer("embedding_length")
    num_heads = meta.integer("attention.head_count")
    head_dim = meta.integer("attention.key_length", 256)
    # Linear scaling (models of 4B and up) is for the global layers alone.
    global_rope = RopeConfig(meta.real("rope.freq_base", 1_000_000.0), head_dim, False, meta.position_scale())
    local_rope = RopeConfig(meta.real("rope.freq_base_swa", LOCAL_ROPE_THETA), head_dim, False)
    local_layer = LayerConfig(window=meta.integer("attention.sliding_window"), rope=local_rope)
    global_layer = LayerConfig(window=None, rope=global_rope)
    num_layers = meta.integer("block_count")
    every = meta.integer("attention.sliding_window_pattern", GLOBAL_LAYER_EVERY)
    return ModelConfig(
        family="gemma3",
        name=file.path.stem,
        hidden_size=hidden_size,
        intermediate_size=meta.integer("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=meta.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=file.tensors["token_embd.weight"].shape[0],
        max_context=meta.integer("context_length"),
        norm_eps=meta.real("attention.layer_norm_rms_epsilon"),
        activation="gelu_tanh",
        attention_scale=head_dim**-0.5,
        layers=tuple(global_layer if (i + 1) % every == 0 else local_layer for i in range(num_layers)),
        weights=gguf_weight_names(file, num_layers),
        embedding_scale=hidden_size**0.5,
        qk_norm=True,
        post_norms=True,
    )
