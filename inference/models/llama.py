"""The llama family: Llama 1 to 3, SmolLM2, TinyLlama.

GGUF converters permute the rows of q and k so that rotary embedding acts on adjacent pairs.
Llama 3's frequency scaling is stored as the tensor `rope_freqs.weight`.
"""

from __future__ import annotations

from inference.formats.gguf import GGUFFile
from inference.models.common import config_of_layers
from inference.models.config import LayerConfig, ModelConfig, RopeConfig
from inference.models.metadata import Metadata
from inference.models.weights import read_vector


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Read a llama ModelConfig; raises BadModelFile or UnsupportedModel for metadata that cannot be right or used."""
    meta = Metadata(file.metadata, file.path.name)
    head_size = meta.integer("embedding_length") // meta.integer("attention.head_count")
    head_dim = meta.integer("attention.key_length", head_size)
    factors = read_vector(file, "rope_freqs.weight") if "rope_freqs.weight" in file.tensors else None
    rope = RopeConfig(
        theta=meta.real("rope.freq_base", 10_000.0),
        rotary_dim=meta.integer("rope.dimension_count", head_dim),
        interleaved=True,
        position_scale=meta.position_scale(),
        frequency_factors=None if factors is None else tuple(float(factor) for factor in factors),
    )
    layers = (LayerConfig(window=None, rope=rope),) * meta.integer("block_count")
    return config_of_layers(file, meta, head_dim, "silu", layers)
