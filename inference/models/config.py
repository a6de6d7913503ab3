"""ModelConfig: one frozen description that fits every family.

A family file (llama.py, gemma3.py) reads the file's metadata into a ModelConfig and says where each
weight is found. Everything after that (plan, executors, panels) reads this record only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding of one kind of layer (RoFormer, arXiv:2104.09864).

    `interleaved` rotates adjacent pairs (2i, 2i+1), the layout of llama GGUF files whose q and k rows
    were permuted for it; otherwise the halves (i, i + rotary_dim/2) are rotated.
    `frequency_factors` divide the inverse frequencies one by one (Llama 3 scaling, as GGUF stores it).
    """

    theta: float
    rotary_dim: int
    interleaved: bool
    position_scale: float = 1.0
    frequency_factors: tuple[float, ...] | None = None


@dataclass(frozen=True)
class LayerConfig:
    """What may differ between layers. `window` is the number of keys a query sees, itself included; None means all."""

    window: int | None
    rope: RopeConfig


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and constants of a decoder-only transformer.

    `weights` maps the canonical names used in the plan ("layers.0.attention.q", "embedding", ...) to the
    names in the file. `lm_head` maps to the embedding's tensor where the two are tied.
    """

    family: str
    name: str
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    norm_eps: float
    activation: Activation
    attention_scale: float
    layers: tuple[LayerConfig, ...]
    weights: Mapping[str, str]
    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    qk_norm: bool = False
    post_norms: bool = False

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim
