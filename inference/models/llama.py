"""The llama family: Llama 1 to 3, SmolLM2, TinyLlama.

GGUF converters permute the rows of q and k so that rotary embedding acts on adjacent pairs.
Llama 3's frequency scaling is stored as the tensor `rope_freqs.weight`.
"""

from __future__ import annotations

from inference.formats.gguf import GGUFFile
from inference.models.config import LayerConfig, ModelConfig, RopeConfig
from inference.models.metadata import Metadata
from inference.models.weights import gguf_weight_names, read_vector


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Read a llama ModelConfig; raises BadModelFile or UnsupportedModel for metadata that cannot be right or used."""
    meta = Metadata(file.metadata, file.path.name)
    hidden_size = meta.integer("embedding_length")
    num_heads = meta.integer("attention.head_count")
    head_dim = meta.integer("attention.key_length", hidden_size // num_heads)
    factors = read_vector(file, "rope_freqs.weight") if "rope_freqs.weight" in file.tensors else None
    rope = RopeConfig(
        theta=meta.real("rope.freq_base", 10_000.0),
        rotary_dim=meta.integer("rope.dimension_count", head_dim),
        interleaved=True,
        position_scale=meta.position_scale(),
        frequency_factors=None if factors is None else tuple(float(factor) for factor in factors),
    )
    num_layers = meta.integer("block_count")
    return ModelConfig(
        family="llama",
        name=file.path.stem,
        hidden_size=hidden_size,
        intermediate_size=meta.integer("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=meta.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=file.tensors["token_embd.weight"].shape[0],
        max_context=meta.integer("context_length"),
        norm_eps=meta.real("attention.layer_norm_rms_epsilon"),
        activation="silu",
        attention_scale=head_dim**-0.5,
        layers=(LayerConfig(window=None, rope=rope),) * num_layers,
        weights=gguf_weight_names(file, num_layers),
    )
