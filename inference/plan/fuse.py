"""Small rewrites of a plan, each with a name. A rewrite that does not apply leaves its reason on the op.

Every rewrite keeps the meaning: the NumPy executor gives the same numbers before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from inference.formats.planar import WIDENS_TO_Q8_0
from inference.plan.fuse_lora import lora_into_matmul, reading
from inference.plan.ops import Add, ExpertMatmul, KvAppend, Matmul, Op, Plan, RmsNorm, Rope, TensorRef, WeightRef

WeightFormats = Mapping[str, str]
"""Storage format by canonical weight name ("layers.0.attention.q" -> "q4_1")."""


MOST_NORM_ROWS = 32
"""Of more rows a norm stays an op: every workgroup of a matmul would compute it anew, while it multiplies."""


@dataclass(frozen=True)
class Rewrite:
    """A named rewrite of the op list."""

    name: str
    apply: Callable[[list[Op], WeightFormats], list[Op]]


def fuse(plan: Plan, formats: WeightFormats) -> Plan:
    """Apply all rewrites in their order, layer by layer: none looks beyond the ops of its own."""
    fused: list[Op] = []
    for _, layer in groupby(plan.ops, key=lambda op: op.layer):
        ops = list(layer)
        for rewrite in REWRITES:
            ops = rewrite.apply(ops, formats)
        fused += ops
    return replace(plan, ops=tuple(fused))


def common_format(names: tuple[str, ...], formats: WeightFormats) -> str | None:
    """The one format that weights can share without loss and be stacked in, or None.

    Types with one f16 scale per 32 weights widen exactly into q8_0, whose scale is the same.
    """
    found = {formats[name] for name in names}
    if len(found) == 1:
        return found.pop()
    return "q8_0" if found <= WIDENS_TO_Q8_0 else None


def merge_qkv(ops: list[Op], formats: WeightFormats) -> list[Op]:
    """q, k and v projections of one input become one matmul over the stacked weights."""
    return _stack(ops, formats, ("attention.q", "attention.k", "attention.v"), "attention.qkv", "merge_qkv")


def merge_gate_up(ops: list[Op], formats: WeightFormats) -> list[Op]:
    """gate and up projections of one input, of one part or of experts, become one matmul over the stacked weights."""
    for part in ("feed_forward.", "feed_forward.expert_"):
        ops = _stack(ops, formats, (f"{part}gate", f"{part}up"), f"{part}gate_up", "merge_gate_up")
    return ops


def adapters_into_matmul(ops: list[Op], formats: WeightFormats) -> list[Op]:
    """What adapters add to a matmul is added by it; see `inference.plan.fuse_lora`."""
    return lora_into_matmul(ops)


def activation_into_matmul(ops: list[Op], formats: WeightFormats) -> list[Op]:
    """The matmul that makes gate and up applies the activation, too."""
    result: list[Op] = []
    for op in ops:
        if op.kind != "activation_gate" or op.inputs[0].parent is None:
            result.append(op)
            continue
        merged = next(o for o in result if o.output == op.inputs[0].parent)
        result.remove(merged)
        assert isinstance(merged.attributes, Matmul | ExpertMatmul)
        attributes = replace(merged.attributes, activation=op.attributes.activation)  # type: ignore[union-attr]
        result.append(replace(merged, output=op.output, attributes=attributes))
    return result


def norm_into_matmul(ops: list[Op], formats: WeightFormats) -> list[Op]:
    """A norm of few rows that only matmuls read is computed inside each of them."""
    result = list(ops)
    for norm in ops:
        if norm.kind != "rmsnorm" or norm.attributes.group != norm.output.columns:  # type: ignore[union-attr]
            continue
        readers = _readers(result, norm.output)
        if any(not isinstance(reader.attributes, Matmul) for reader in readers):
            if not norm.name.endswith("post_norm"):
                _replace(result, norm, _note(norm, "norm_into_matmul: its output is read by another kind of op"))
            continue
        if norm.output.rows > MOST_NORM_ROWS:
            _replace(result, norm, _note(norm, f"norm_into_matmul: of {norm.output.rows} rows it is faster by itself"))
            continue
        for reader in readers:
            fused = replace(
                reader,
                inputs=(norm.inputs[0], *reader.inputs[1:]),
                weights=(*reader.weights, norm.weights[0]),
                attributes=replace(_matmul(reader), norm_eps=norm.attributes.eps),  # type: ignore[union-attr]
            )
            _replace(result, reader, _note(fused, f"norm_into_matmul: {norm.name}"))
        result.remove(norm)
    return result


def residual_into_producer(ops: list[Op], formats: WeightFormats) -> list[Op]:
    """The residual add is done by the matmul or the post-norm that makes its first operand."""
    result = list(ops)
    for add in ops:
        if not isinstance(add.attributes, Add):
            continue
        producer = next((o for o in result if o.output == add.inputs[0]), None)
        if producer is None or not isinstance(producer.attributes, Matmul | RmsNorm):
            _replace(result, add, _note(add, "residual_into_producer: the operand is not made by a matmul or norm"))
            continue
        attributes = replace(producer.attributes, residual=True)
        if isinstance(attributes, Matmul):
            attributes = replace(attributes, scale=attributes.scale * add.attributes.scale)
        elif add.attributes.scale != 1:
            _replace(result, add, _note(add, "residual_into_producer: a norm does not scale its result"))
            continue
        if len(_readers(result, producer.output)) > 1:
            _replace(result, add, _note(add, f"residual_into_producer: {producer.name} is read elsewhere too"))
            continue
        fused = replace(
            producer,
            inputs=(*producer.inputs, add.inputs[1]),
            output=add.output,
            attributes=attributes,
        )
        result.remove(producer)
        _replace(result, add, _note(fused, f"residual_into_producer: {add.name}"))
    return result


def rope_into_append(ops: list[Op], formats: WeightFormats) -> list[Op]:
    """Head norms, rotation of q and k, and the KV append become one op whose output is the rotated q."""
    result = list(ops)
    for append in [op for op in ops if op.kind == "kv_append"]:
        by_output = {op.output: op for op in result}
        rope_k = by_output[append.inputs[0]]
        rope_q = next(op for op in result if op.layer == append.layer and op.name == "attention.q_rope")
        removed = [rope_q, rope_k]
        q, k = rope_q.inputs[0], rope_k.inputs[0]
        weights: tuple[WeightRef, ...] = ()
        eps = None
        norm_q, norm_k = by_output.get(q), by_output.get(k)
        assert isinstance(append.attributes, KvAppend) and isinstance(rope_k.attributes, Rope)
        if norm_q is not None and norm_k is not None and _is_norm_of(norm_q, norm_k, append.attributes.head_dim):
            removed += [norm_q, norm_k]
            q, k = norm_q.inputs[0], norm_k.inputs[0]
            weights = (norm_q.weights[0], norm_k.weights[0])
            eps = norm_q.attributes.eps  # type: ignore[union-attr]
        fused = replace(
            append,
            inputs=(q, k, append.inputs[1]),
            output=rope_q.output,
            weights=weights,
            attributes=replace(append.attributes, rope=rope_k.attributes.rope, qk_norm_eps=eps),
        )
        _replace(result, append, _note(fused, "rope_into_append: " + ", ".join(op.name for op in removed)))
        for op in removed:
            result.remove(op)
    return result


REWRITES: tuple[Rewrite, ...] = (
    Rewrite("merge_qkv", merge_qkv),
    Rewrite("merge_gate_up", merge_gate_up),
    Rewrite("lora_into_matmul", adapters_into_matmul),
    Rewrite("activation_into_matmul", activation_into_matmul),
    Rewrite("norm_into_matmul", norm_into_matmul),
    Rewrite("residual_into_producer", residual_into_producer),
    Rewrite("rope_into_append", rope_into_append),
)


def _stack(ops: list[Op], formats: WeightFormats, names: tuple[str, ...], merged_name: str, rewrite: str) -> list[Op]:
    """Stack the matmuls called `names` in each layer into one; later readers see views of its output."""
    result = list(ops)
    views: dict[TensorRef, TensorRef] = {}
    for first in [op for op in ops if op.name == names[0]]:
        members = [op for op in ops if op.layer == first.layer and op.name in names]
        sources = tuple(source for op in members for source in op.weights[0].sources)
        unmet = None
        if common_format(sources, formats) is None:
            found = ", ".join(f"{source.rsplit('.', 1)[1]} is {formats[source]}" for source in sources)
            unmet = f"the formats cannot be stacked ({found})"
        elif len({op.attributes for op in members}) > 1:
            unmet = "only some of them have a bias"
        if unmet:
            for op in members:
                _replace(result, op, _note(op, f"{rewrite}: not applied, {unmet}"))
            continue
        weights = tuple(_stacked(refs) for refs in zip(*(op.weights for op in members), strict=True))
        columns = sum(op.output.columns for op in members)
        output = TensorRef(f"layers.{first.layer}.{merged_name}", first.output.rows, columns, first.output.dtype)
        merged = replace(first, name=merged_name, output=output, weights=weights)
        _replace(result, first, _note(merged, f"{rewrite}: {', '.join(op.name for op in members)}"))
        for op in members[1:]:
            result.remove(op)
        column = 0
        for op in members:
            views[op.output] = output.view(op.output.name, column, op.output.columns)
            column += op.output.columns
    return [reading(op, views) for op in result] if views else result


def _stacked(refs: tuple[WeightRef, ...]) -> WeightRef:
    sources = tuple(source for ref in refs for source in ref.sources)
    return WeightRef(sources, sum(ref.rows for ref in refs), refs[0].columns)


def _is_norm_of(q: Op, k: Op, head_dim: int) -> bool:
    """Whether q and k come from norms of single heads, which the append can do on the way."""
    return all(isinstance(op.attributes, RmsNorm) and op.attributes.group == head_dim for op in (q, k))


def _matmul(op: Op) -> Matmul:
    assert isinstance(op.attributes, Matmul)
    return op.attributes


def _readers(ops: list[Op], tensor: TensorRef) -> list[Op]:
    return [op for op in ops if any(read.storage == tensor for read in op.inputs)]


def _replace(ops: list[Op], old: Op, new: Op) -> None:
    ops[ops.index(old)] = new


def _note(op: Op, note: str) -> Op:
    return replace(op, notes=(*op.notes, note))
