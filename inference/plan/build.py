"""ModelConfig -> the unfused plan. Knows nothing of devices; each op does one textbook thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from inference.models.config import Experts, ModelConfig
from inference.plan.ops import (
    ActivationGate,
    Add,
    Attention,
    Attributes,
    DType,
    Embed,
    ExpertMatmul,
    Kind,
    KvAppend,
    LastRow,
    Logits,
    Lora,
    Matmul,
    Op,
    Plan,
    RmsNorm,
    Rope,
    Route,
    Sample,
    Softcap,
    TensorRef,
    WeightRef,
)

NO_ADAPTERS: Mapping[str, int] = MappingProxyType({})


def build(
    config: ModelConfig,
    rows: int,
    logits: Logits,
    sample: bool = False,
    dtype: DType = "f32",
    kv_dtype: DType = "f32",
    lora_ranks: Mapping[str, int] = NO_ADAPTERS,
) -> Plan:
    """The forward pass of `config` over up to `rows` tokens.

    Activations are stored in `dtype`, keys and values in `kv_dtype`. The residual stream and the logits are always
    f32: the stream grows to 104,000 in Gemma 3 270M, where f16 ends at 65,504, and to 22,500 in SmolLM2-135M, where
    f16 has steps of 16. `lora_ranks` has the rank of all adapters together on each projection that they act on, by its
    canonical name. With `sample` the plan ends by choosing the next token after each row that it computes logits for.
    """
    if sample and logits == "none":
        raise ValueError("sampling needs logits")
    builder = _Builder(config, rows, dtype, lora_ranks)
    x = builder.embed()
    for layer in range(config.num_layers):
        x = builder.layer(layer, x)
    if logits != "none":
        builder.head(x, logits, sample)
    return Plan(tuple(builder.ops), rows, logits, kv_dtype)


class _Builder:
    def __init__(self, config: ModelConfig, rows: int, dtype: DType, lora_ranks: Mapping[str, int]) -> None:
        self.config = config
        self.rows = rows
        self.dtype: DType = dtype
        self.lora_ranks = lora_ranks
        self.ops: list[Op] = []

    def embed(self) -> TensorRef:
        c = self.config
        table = WeightRef(("embedding",), c.vocab_size, c.hidden_size)
        return self._op("embed", "embedding", None, (), c.hidden_size, Embed(c.embedding_scale), (table,), dtype="f32")

    def layer(self, layer: int, x: TensorRef) -> TensorRef:
        x = self._residual(layer, "attention", self._attention, x)
        return self._residual(layer, "feed_forward", self._feed_forward, x)

    def head(self, x: TensorRef, logits: Logits, sample: bool) -> None:
        c = self.config
        rows = self.rows
        if logits == "last" and rows > 1:
            x = self._op("last_row", "last_row", None, (x,), c.hidden_size, LastRow(), rows=1, dtype="f32")
        if logits == "last":
            rows = 1
        norm = WeightRef(("final_norm",), 1, c.hidden_size)
        attributes = RmsNorm(c.norm_eps, c.hidden_size)
        x = self._op("rmsnorm", "final_norm", None, (x,), c.hidden_size, attributes, (norm,), rows=rows)
        head = WeightRef(("lm_head",), c.vocab_size, c.hidden_size)
        matmul = Matmul(scale=c.logit_scale)
        logits_of_x = self._op("lm_head", "lm_head", None, (x,), c.vocab_size, matmul, (head,), rows=rows, dtype="f32")
        x = self._adapted(None, "lm_head", x, logits_of_x)
        if c.logit_softcap is not None:
            cap = Softcap(c.logit_softcap)
            x = self._op("softcap", "logit_softcap", None, (x,), c.vocab_size, cap, rows=rows, dtype="f32")
        if sample:
            self._op("sample", "sample", None, (x,), 1, Sample(), rows=rows, dtype="f32")

    def _residual(self, layer: int, part: str, body: Callable[[int, TensorRef], TensorRef], x: TensorRef) -> TensorRef:
        """x + residual_scale * post_norm(body(pre_norm(x)))."""
        c = self.config
        made = body(layer, self._norm(layer, f"{part}.norm", x) if c.pre_norms else x)
        if c.post_norms:
            made = self._norm(layer, f"{part}.post_norm", made)
        return self._op("add", f"{part}.residual", layer, (made, x), x.columns, Add(c.residual_scale), dtype="f32")

    def _attention(self, layer: int, x: TensorRef) -> TensorRef:
        c = self.config
        rope = c.layers[layer].rope
        q = self._matmul(layer, "attention.q", x, c.q_size)
        k = self._matmul(layer, "attention.k", x, c.kv_size)
        v = self._matmul(layer, "attention.v", x, c.kv_size)
        if c.qk_norm != "none":
            by_head = c.qk_norm == "head"
            q = self._norm(layer, "attention.q_norm", q, c.head_dim if by_head else c.q_size)
            k = self._norm(layer, "attention.k_norm", k, c.head_dim if by_head else c.kv_size)
        q = self._op("rope", "attention.q_rope", layer, (q,), c.q_size, Rope(rope, c.head_dim))
        k = self._op("rope", "attention.k_rope", layer, (k,), c.kv_size, Rope(rope, c.head_dim))
        append = KvAppend(c.num_heads, c.num_kv_heads, c.head_dim)
        # The append has no result of its own: its output names k, so that what it stored can be looked at.
        self._op("kv_append", "attention.kv_append", layer, (k, v), c.kv_size, append)
        attention = Attention(
            c.num_heads,
            c.num_kv_heads,
            c.head_dim,
            c.attention_scale,
            c.layers[layer].window,
            c.attention_softcap,
            c.attention_sinks,
        )
        sinks = (WeightRef((f"layers.{layer}.attention.sinks",), c.num_heads, 1),) if c.attention_sinks else ()
        attended = self._op("attention", "attention", layer, (q,), c.q_size, attention, sinks)
        return self._matmul(layer, "attention.output", attended, c.hidden_size)

    def _feed_forward(self, layer: int, x: TensorRef) -> TensorRef:
        c = self.config
        experts = c.layers[layer].experts
        if experts is not None:
            return self._mixture(layer, x, experts)
        gate = self._matmul(layer, "feed_forward.gate", x, c.intermediate_size)
        up = self._matmul(layer, "feed_forward.up", x, c.intermediate_size)
        attributes = ActivationGate(c.activation)
        gated = self._op(
            "activation_gate", "feed_forward.activation", layer, (gate, up), c.intermediate_size, attributes
        )
        return self._matmul(layer, "feed_forward.down", gated, c.hidden_size)

    def _mixture(self, layer: int, x: TensorRef, experts: Experts) -> TensorRef:
        """The experts' feed-forward parts, weighted by their shares."""
        c = self.config
        count, chosen = experts.count, experts.per_token
        # In f32: what is nearly equal in the logits makes the difference between two experts.
        logits = self._matmul(layer, "feed_forward.router", x, count, dtype="f32")
        route = Route(count, chosen, experts.normalised)
        routed = self._op("route", "feed_forward.route", layer, (logits,), 2 * chosen, route, dtype="f32")
        inner = chosen * experts.intermediate_size
        gate = self._expert_matmul(layer, "feed_forward.expert_gate", x, routed, inner, ExpertMatmul(count, chosen))
        up = self._expert_matmul(layer, "feed_forward.expert_up", x, routed, inner, ExpertMatmul(count, chosen))
        activation = ActivationGate(c.activation)
        gated = self._op("activation_gate", "feed_forward.activation", layer, (gate, up), inner, activation)
        down = ExpertMatmul(count, chosen, weighted=True)
        return self._expert_matmul(layer, "feed_forward.expert_down", gated, routed, c.hidden_size, down)

    def _expert_matmul(
        self, layer: int, name: str, x: TensorRef, route: TensorRef, columns: int, attributes: ExpertMatmul
    ) -> TensorRef:
        a = attributes
        rows = a.experts * (columns if a.weighted else columns // a.chosen)
        weights = self._weights(layer, name, rows, x.columns // a.chosen if a.weighted else x.columns)
        a = replace(a, bias=len(weights) > 1)
        return self._op("expert_matmul", name, layer, (x, route), columns, a, weights)

    def _matmul(self, layer: int, name: str, x: TensorRef, columns: int, dtype: DType | None = None) -> TensorRef:
        weights = self._weights(layer, name, columns, x.columns)
        matmul = Matmul(bias=len(weights) > 1)
        y = self._op("matmul", name, layer, (x,), columns, matmul, weights, dtype=dtype)
        return self._adapted(layer, name, x, y)

    def _weights(self, layer: int, name: str, rows: int, columns: int) -> tuple[WeightRef, ...]:
        """A projection's matrix, and its bias where it has one."""
        matrix = WeightRef((f"layers.{layer}.{name}",), rows, columns)
        if name not in self.config.biases:
            return (matrix,)
        return matrix, WeightRef((f"layers.{layer}.{name}.bias",), rows, 1)

    def _adapted(self, layer: int | None, name: str, x: TensorRef, y: TensorRef) -> TensorRef:
        """y, a projection of x, with what adapters add to it."""
        canonical = name if layer is None else f"layers.{layer}.{name}"
        rank = self.lora_ranks.get(canonical, 0)
        if not rank:
            return y
        a = WeightRef((f"{canonical}.lora_a",), rank, x.columns)
        b = WeightRef((f"{canonical}.lora_b",), y.columns, rank)
        return self._op("lora", f"{name}.lora", layer, (x, y), y.columns, Lora(), (a, b), rows=y.rows, dtype=y.dtype)

    def _norm(self, layer: int, name: str, x: TensorRef, group: int | None = None) -> TensorRef:
        group = group or x.columns
        weight = WeightRef((f"layers.{layer}.{name}",), 1, group)
        return self._op("rmsnorm", name, layer, (x,), x.columns, RmsNorm(self.config.norm_eps, group), (weight,))

    def _op(
        self,
        kind: Kind,
        name: str,
        layer: int | None,
        inputs: tuple[TensorRef, ...],
        columns: int,
        attributes: Attributes,
        weights: tuple[WeightRef, ...] = (),
        rows: int | None = None,
        dtype: DType | None = None,
    ) -> TensorRef:
        prefix = "" if layer is None else f"layers.{layer}."
        output = TensorRef(prefix + name, rows or self.rows, columns, dtype or self.dtype)
        self.ops.append(Op(kind, name, layer, inputs, output, attributes, weights))
        return output
