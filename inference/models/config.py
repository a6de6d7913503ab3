"""ModelConfig: one frozen description that fits every family.

A family file (llama.py, gemma.py ...) reads a config.json or a GGUF file's metadata into a ModelConfig; its weight
names say where each weight is found. Everything after that (plan, executors, panels) reads this record only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

QkNorm = Literal["none", "head", "projection"]


@dataclass(frozen=True)
class ClampedSwiglu:
    """(up + 1) * gate * sigmoid(alpha * gate), with gate at most `limit` and up within `limit` of 0: GPT-OSS's gate."""

    alpha: float
    limit: float


Activation = Literal["silu", "gelu_tanh"] | ClampedSwiglu
"""By name: activation(gate) * up."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding of one kind of layer (RoFormer, arXiv:2104.09864).

    `interleaved` rotates adjacent pairs (2i, 2i+1), the layout of llama GGUF files whose q and k rows
    were permuted for it; otherwise the halves (i, i + rotary_dim/2) are rotated.
    `position_scale` multiplies positions; 0 turns nothing: a layer without position embedding (NoPE, arXiv:2305.19466).
    `frequency_factors` divide the inverse frequencies one by one: what Llama 3's, YaRN's and LongRoPE's scaling come
    down to. `magnitude` multiplies cos and sin (YaRN's and LongRoPE's attention factor).
    """

    theta: float
    rotary_dim: int
    interleaved: bool
    position_scale: float = 1.0
    frequency_factors: tuple[float, ...] | None = None
    magnitude: float = 1.0


@dataclass(frozen=True)
class Experts:
    """A mixture of experts (arXiv:1701.06538): each token goes through `per_token` of `count` feed-forward parts.

    `normalised`: the shares of the chosen experts sum to 1; otherwise they are those of a softmax over all experts.
    """

    count: int
    per_token: int
    intermediate_size: int
    normalised: bool


@dataclass(frozen=True)
class LayerConfig:
    """What may differ between layers. `window` is the number of keys a query sees, itself included; None means all.

    `experts` is the mixture that takes the place of one feed-forward part.
    """

    window: int | None
    rope: RopeConfig
    experts: Experts | None = None


@dataclass(frozen=True)
class StoredWeight:
    """Where a weight lies in the file: `rows` first_row .. first_row + rows - 1 of `tensor`, with `offset` added.

    Several projections may be stored as one tensor; norms may be stored as their difference from 1. With `experts` the
    rows are those of so many experts, one after another: of one tensor (experts, rows of each, columns), or of as many
    tensors, whose numbers stand for the {expert} in `tensor`. `row_step` above 1 takes every so manieth row from
    `first_row` on; `transposed` says that floats are stored as (experts, columns, rows). A `vector` is a norm or has
    one number a row, and is kept in f32.
    """

    tensor: str
    first_row: int
    rows: int
    offset: float = 0.0
    experts: int = 0
    row_step: int = 1
    transposed: bool = False
    vector: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors that hold it."""
        if "{expert}" not in self.tensor:
            return (self.tensor,)
        return tuple(self.tensor.format(expert=expert) for expert in range(self.experts))


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and constants of a decoder-only transformer.

    x = x + residual_scale * post_norm(attention(pre_norm(x))), and the same for the feed-forward part; either norm may
    be absent. `qk_norm` normalises q and k by head, or over the whole projection. `biases` names the projections that
    add one ("attention.q"). With `attention_sinks` each head has a logit of its own that takes part in every softmax
    and adds nothing to the result. Logits are multiplied by `logit_scale`.

    `weights` maps the canonical names used in the plan ("layers.0.attention.q", "layers.0.attention.q.bias",
    "embedding", ...) to what the file holds. `lm_head` is the embedding's tensor where the two are tied.
    `long_rope` is the rope for contexts longer than its number of tokens (LongRoPE); see `for_context`.
    """

    family: str
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
    name: str = ""
    weights: Mapping[str, StoredWeight] = field(default_factory=dict)
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    qk_norm: QkNorm = "none"
    pre_norms: bool = True
    post_norms: bool = False
    biases: frozenset[str] = frozenset()
    attention_sinks: bool = False
    long_rope: tuple[int, RopeConfig] | None = None

    def for_context(self, context: int) -> ModelConfig:
        """The config as it is used with a context of so many tokens."""
        if self.long_rope is None or context <= self.long_rope[0]:
            return self
        return replace(self, layers=tuple(replace(layer, rope=self.long_rope[1]) for layer in self.layers))

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim
