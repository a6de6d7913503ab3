"""What all families read in the same way, from config.json and from GGUF metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from inference.formats.gguf import GGUFFile
from inference.models.config import Activation, Experts, LayerConfig, ModelConfig, RopeConfig
from inference.models.fields import Fields
from inference.models.rope_scaling import gguf_rope, hf_rope
from inference.models.weights import GGUF_NAMES, WeightNames, read_vector

HF_NAMES = WeightNames(
    "model.embed_tokens.weight",
    "model.norm.weight",
    "lm_head.weight",
    "model.layers.{layer}.{part}",
    {
        "attention.norm": "input_layernorm",
        "attention.q": "self_attn.q_proj",
        "attention.k": "self_attn.k_proj",
        "attention.v": "self_attn.v_proj",
        "attention.q_norm": "self_attn.q_norm",
        "attention.k_norm": "self_attn.k_norm",
        "attention.output": "self_attn.o_proj",
        "feed_forward.norm": "post_attention_layernorm",
        "feed_forward.gate": "mlp.gate_proj",
        "feed_forward.up": "mlp.up_proj",
        "feed_forward.down": "mlp.down_proj",
        "feed_forward.router": "mlp.gate",
        "feed_forward.expert_gate": "mlp.experts.{expert}.gate_proj",
        "feed_forward.expert_up": "mlp.experts.{expert}.up_proj",
        "feed_forward.expert_down": "mlp.experts.{expert}.down_proj",
    },
)
POST_NORM_PARTS: Mapping[str, str] = {
    "attention.post_norm": "post_attention_layernorm",
    "feed_forward.norm": "pre_feedforward_layernorm",
    "feed_forward.post_norm": "post_feedforward_layernorm",
}
"""How families with norms after attention and feed-forward call them in safetensors."""

HF_ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
PROJECTIONS = ("attention.q", "attention.k", "attention.v", "attention.output")
FEED_FORWARD = ("feed_forward.gate", "feed_forward.up", "feed_forward.down")
MAX_LAYERS, MAX_HEAD_DIM = 10_000, 10_000
"""Far above any model's. A record is made of each layer, a table for each head's columns, before tensors are seen."""


@dataclass(frozen=True)
class Family:
    """How one family is read: its config from either description (without weights), and its tensors' names.

    `hf_defaults` are the values that real config.json files leave out where they are the defaults of the family's
    class in Transformers. `hf_group` is the key below which a model that also sees images describes its text part.
    `gguf_interleaved` says that converters to GGUF permute the rows of q and k, so that adjacent columns are a pair.
    """

    config_from_hf: Callable[[Fields], ModelConfig]
    config_from_gguf: Callable[[GGUFFile, Fields], ModelConfig]
    hf_names: WeightNames = HF_NAMES
    gguf_names: WeightNames = GGUF_NAMES
    hf_defaults: Mapping[str, Any] = field(default_factory=dict)
    hf_group: str = ""
    gguf_interleaved: bool = False


def hf_config(fields: Fields, layer_type_key: str = "") -> ModelConfig:
    """A ModelConfig of the llama kind: every layer sees the whole context. Raises BadModelFile or UnsupportedModel."""
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", hidden_size // num_heads, maximum=MAX_HEAD_DIM)
    layer = LayerConfig(window=None, rope=hf_rope(fields, head_dim, layer_type_key))
    return ModelConfig(
        family=fields.text("model_type"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        vocab_size=fields.integer("vocab_size"),
        max_context=fields.integer("max_position_embeddings"),
        norm_eps=fields.real("rms_norm_eps", 1e-6),
        activation=_hf_activation(fields),
        attention_scale=head_dim**-0.5,
        layers=(layer,) * fields.integer("num_hidden_layers", maximum=MAX_LAYERS),
    )


def hf_windows(fields: Fields, windowed: Callable[[int], bool]) -> list[int | None]:
    """Each layer's window: as `layer_types` says, else for the layers that `windowed` picks; None without a size."""
    count = fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    if not fields.has("sliding_window"):
        return [None] * count
    size = fields.integer("sliding_window")
    if not fields.has("layer_types"):
        return [size if windowed(layer) else None for layer in range(count)]
    kinds = fields.items("layer_types")
    known = {"sliding_attention": size, "full_attention": None}
    if len(kinds) != count:
        raise fields.wrong("layer_types", kinds, f"one kind for each of {count} layers")
    if unknown := [kind for kind in kinds if kind not in known]:
        raise fields.unsupported("layer_types", unknown[0], ", ".join(known))
    return [known[kind] for kind in kinds]


def gguf_config(
    file: GGUFFile,
    fields: Fields,
    activation: Activation = "silu",
    theta: float = 10_000.0,
    yarn_truncate: bool = True,
) -> ModelConfig:
    """A ModelConfig of the llama kind from GGUF metadata: biases as the first layer has, and a window on every layer.

    `theta` is the rope's base where the file names none; `yarn_truncate` is that of `yarn_factors`. Raises BadModelFile
    or UnsupportedModel.
    """
    num_heads, num_layers = fields.integer("attention.head_count"), fields.integer("block_count", maximum=MAX_LAYERS)
    head_dim = fields.integer(
        "attention.key_length", fields.integer("embedding_length") // num_heads, maximum=MAX_HEAD_DIM
    )
    if (value_dim := fields.integer("attention.value_length", head_dim)) != head_dim:
        raise fields.unsupported("attention.value_length", value_dim, f"{head_dim}, the length of a key")
    if not fields.flag("attention.causal", True):
        raise fields.unsupported("attention.causal", False, "true: models that write text")
    rotary_dim = fields.integer("rope.dimension_count", head_dim, maximum=MAX_HEAD_DIM)
    unscaled = RopeConfig(fields.positive("rope.freq_base", theta), rotary_dim, interleaved=False)
    rope = gguf_rope(fields, unscaled, yarn_truncate)
    if "rope_freqs.weight" in file.tensors:
        factors = read_vector(file, "rope_freqs.weight")
        rope = replace(rope, frequency_factors=tuple(factors.tolist()))
    parts = GGUF_NAMES.parts
    config = ModelConfig(
        family=str(file.metadata["general.architecture"]),
        hidden_size=fields.integer("embedding_length"),
        intermediate_size=fields.integer("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=file.tensors["token_embd.weight"].shape[0],
        max_context=fields.integer("context_length"),
        norm_eps=fields.real("attention.layer_norm_rms_epsilon"),
        activation=activation,
        attention_scale=fields.positive("attention.scale", head_dim**-0.5),
        layers=(LayerConfig(window=None, rope=rope),) * num_layers,
        biases=frozenset(part for part in (*PROJECTIONS, *FEED_FORWARD) if f"blk.0.{parts[part]}.bias" in file.tensors),
    )
    return with_windows(config, [fields.integer("attention.sliding_window", 0, minimum=0) or None] * num_layers)


def with_windows(config: ModelConfig, windows: list[int | None]) -> ModelConfig:
    """The same config with each layer's window; one that spans the whole context is none."""
    spans = [window if window is not None and window < config.max_context else None for window in windows]
    layers = tuple(replace(layer, window=window) for layer, window in zip(config.layers, spans, strict=True))
    return replace(config, layers=layers)


def with_interleaved_rope(config: ModelConfig) -> ModelConfig:
    """The same config with ropes that turn adjacent columns together."""
    layers = tuple(replace(layer, rope=replace(layer.rope, interleaved=True)) for layer in config.layers)
    return replace(config, layers=layers)


def with_experts(config: ModelConfig, experts: Experts, mixed: list[bool]) -> ModelConfig:
    """The same config where the layers marked in `mixed` have a mixture of experts as their feed-forward part."""
    return replace(
        config,
        layers=tuple(
            replace(layer, experts=experts) if mixes else layer
            for layer, mixes in zip(config.layers, mixed, strict=True)
        ),
    )


def without_rope(config: ModelConfig, turned: list[bool]) -> ModelConfig:
    """The same config where only the layers marked in `turned` have a position embedding."""
    return replace(
        config,
        layers=tuple(
            layer if turns else replace(layer, rope=replace(layer.rope, position_scale=0.0))
            for layer, turns in zip(config.layers, turned, strict=True)
        ),
    )


def _hf_activation(fields: Fields) -> Activation:
    key = "hidden_activation" if fields.has("hidden_activation") else "hidden_act"
    name = fields.text(key, "silu")
    if name not in HF_ACTIVATIONS:
        raise fields.unsupported(key, name, ", ".join(HF_ACTIVATIONS))
    return HF_ACTIVATIONS[name]
