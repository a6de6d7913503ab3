"""What all families read from GGUF metadata in the same way."""

from __future__ import annotations

from inference.formats.gguf import GGUFFile
from inference.models.config import Activation, LayerConfig, ModelConfig
from inference.models.metadata import Metadata
from inference.models.weights import gguf_weight_names


def config_of_layers(
    file: GGUFFile, meta: Metadata, head_dim: int, activation: Activation, layers: tuple[LayerConfig, ...]
) -> ModelConfig:
    """A ModelConfig without anything that only some families have. Raises BadModelFile."""
    num_heads = meta.integer("attention.head_count")
    return ModelConfig(
        family=meta.architecture,
        name=file.path.stem,
        hidden_size=meta.integer("embedding_length"),
        intermediate_size=meta.integer("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=meta.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=file.tensors["token_embd.weight"].shape[0],
        max_context=meta.integer("context_length"),
        norm_eps=meta.real("attention.layer_norm_rms_epsilon"),
        activation=activation,
        attention_scale=head_dim**-0.5,
        layers=layers,
        weights=gguf_weight_names(file, len(layers)),
    )
