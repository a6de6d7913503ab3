"""The operations of a plan: small frozen records that describe a forward pass, independent of any device.

Dimension letters used throughout the engine:
  T rows (tokens in this step)   D hidden_size        F intermediate_size   V vocab_size
  H num_heads                    K num_kv_heads       E head_dim            S kv_len (keys in the cache)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inference.models.config import Activation, RopeConfig

DType = Literal["f32", "f16"]
ITEMSIZE: dict[DType, int] = {"f32": 4, "f16": 2}
"""Bytes of a stored number."""

Logits = Literal["last", "all", "none"]
Device = Literal["webgpu", "cpu"]
DEVICES: tuple[Device, ...] = ("webgpu", "cpu")


@dataclass(frozen=True)
class TensorRef:
    """An activation: (rows, columns) in `dtype`.

    A view of some columns of a wider tensor names it in `parent`; `first_column` is where it begins there.
    """

    name: str
    rows: int
    columns: int
    dtype: DType
    parent: TensorRef | None = None
    first_column: int = 0

    @property
    def storage(self) -> TensorRef:
        """The tensor that owns the memory."""
        return self.parent or self

    def view(self, name: str, first_column: int, columns: int) -> TensorRef:
        return TensorRef(name, self.rows, columns, self.dtype, parent=self, first_column=first_column)


@dataclass(frozen=True)
class WeightRef:
    """A weight matrix (rows, columns): the named weights stacked by rows. A norm is (1, columns), a bias (rows, 1)."""

    sources: tuple[str, ...]
    rows: int
    columns: int

    @property
    def name(self) -> str:
        return "+".join(self.sources)


@dataclass(frozen=True)
class Embed:
    """output = table[token] * scale. Weights: table (V, D)."""

    scale: float


@dataclass(frozen=True)
class RmsNorm:
    """output = x / sqrt(mean(x^2) + eps) * weight over groups of `group` columns [+ residual] (arXiv:1910.07467).

    Inputs: x [, residual]. Weights: weight (1, group).
    """

    eps: float
    group: int
    residual: bool = False


@dataclass(frozen=True)
class Matmul:
    """output = scale * (f(x) @ W.T [+ bias] [+ low @ B.T]) [+ residual], with optional pieces fused in.

    `norm_eps`: f is the RMS norm with the last weight (1, D), else f is the identity.
    `lora`: low (T, R) is what the A matrices of adapters made of f(x).
    `activation`: W stacks gate over up (2F rows) and output = scale * activation(gate) * up [+ residual].
    Inputs: x [, low] [, residual]. Weights: W [, bias (rows of W, 1)] [, B (rows of W, R)] [, norm weight].
    """

    scale: float = 1.0
    bias: bool = False
    lora: bool = False
    norm_eps: float | None = None
    activation: Activation | None = None
    residual: bool = False


@dataclass(frozen=True)
class Lora:
    """output = y + (x @ A.T) @ B.T: what adapters add to y, a projection of x (arXiv:2106.09685).

    Inputs: x, y. Weights: A (R, D), B (rows of the projection, R), those of all adapters side by side along R.
    """


@dataclass(frozen=True)
class Add:
    """output = scale * a + b."""

    scale: float = 1.0


@dataclass(frozen=True)
class Rope:
    """Rotate each head of x (T, heads * E) by its position."""

    rope: RopeConfig
    head_dim: int


@dataclass(frozen=True)
class KvAppend:
    """Write k and v of this step into the layer's KV cache.

    Inputs: k, v; with `rope`: q, k, v, where q and k are first normed (if `qk_norm_eps`; weights: q norm,
    k norm) and rotated, and the rotated q is the output.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig | None = None
    qk_norm_eps: float | None = None


@dataclass(frozen=True)
class Attention:
    """Causal attention of q (T, H*E) over the layer's KV cache, GQA by num_heads / num_kv_heads.

    `window`: a query at position p sees keys p - window + 1 .. p. `softcap` acts on the scaled scores
    before the mask: cap * tanh(score / cap). `sinks`: a logit a head that takes part in each softmax and adds nothing.
    Weights: [sinks (H, 1)].
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    softcap: float | None
    sinks: bool = False


@dataclass(frozen=True)
class ActivationGate:
    """output = activation(gate) * up, or what ClampedSwiglu says. Inputs: gate, up."""

    activation: Activation


@dataclass(frozen=True)
class Route:
    """Choose `chosen` of `experts` experts for each row: those with the largest logits, of equal ones the first.

    Input: logits (T, experts). Output (T, 2 * chosen) f32: the experts' numbers, largest logit first, then their
    shares: the softmax over all experts, or with `normalised` over the chosen ones.
    """

    experts: int
    chosen: int
    normalised: bool


@dataclass(frozen=True)
class ExpertMatmul:
    """Each row through the experts chosen for it. W stacks the matrices of all `experts` by rows.

    For each choice c of a row, whose expert is e: y_c = x @ W_e.T [+ bias_e], side by side (T, chosen * rows of W_e).
    `activation`: W stacks all gates over all ups, and y_c = activation(gate) * up.
    `weighted`: each choice has its own x_c (T, chosen * columns of W), and output = the sum of share_c * y_c.
    Inputs: x, the output of Route. Weights: W [, bias (rows of W, 1)].
    """

    experts: int
    chosen: int
    weighted: bool = False
    bias: bool = False
    activation: Activation | None = None


@dataclass(frozen=True)
class Softcap:
    """output = cap * tanh(x / cap)."""

    cap: float


@dataclass(frozen=True)
class LastRow:
    """output = the last row of x, alone."""


@dataclass(frozen=True)
class Copy:
    """output = x, moved to the device `to` from the other one (and to the dtype that it is stored in there)."""

    to: Device


@dataclass(frozen=True)
class Sample:
    """Choose the next token from logits by the request's Sampling; the token becomes the next step's input."""


Attributes = (
    Embed | RmsNorm | Matmul | Lora | Add | Rope | KvAppend | Attention | ActivationGate | Route | ExpertMatmul
    | Softcap | LastRow | Copy | Sample
)  # fmt: skip
Kind = Literal[
    "embed", "rmsnorm", "matmul", "add", "rope", "kv_append", "attention",
    "activation_gate", "route", "expert_matmul", "softcap", "lora", "lm_head", "sample", "last_row", "copy",
]  # fmt: skip


@dataclass(frozen=True)
class Op:
    """One operation. `layer` is None outside the layers; `notes` tells which fusions made it or could not.

    `device` is None until inference.plan.place has settled it. A copy between devices is WebGPU's, in both directions.
    """

    kind: Kind
    name: str
    layer: int | None
    inputs: tuple[TensorRef, ...]
    output: TensorRef
    attributes: Attributes
    weights: tuple[WeightRef, ...] = ()
    notes: tuple[str, ...] = ()
    device: Device | None = None


@dataclass(frozen=True)
class Plan:
    """A forward pass over up to `rows` tokens; `logits` says for which rows the head is computed."""

    ops: tuple[Op, ...]
    rows: int
    logits: Logits
    kv_dtype: DType
