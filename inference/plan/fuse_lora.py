"""The rewrite that makes adapters cheap: all that act on one matmul cost one more small matmul."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.plan.ops import Lora, Matmul, Op, TensorRef, WeightRef


def reading(op: Op, instead: Mapping[TensorRef, TensorRef]) -> Op:
    """The op with other inputs for those that are named in `instead`."""
    if not any(tensor in instead for tensor in op.inputs):
        return op
    return replace(op, inputs=tuple(instead.get(tensor, tensor) for tensor in op.inputs))


def lora_into_matmul(ops: list[Op]) -> list[Op]:
    """Adapters on one matmul, merged or not, become a matmul with all A stacked, whose result the first one adds.

    Where several projections were merged, their B matrices lie block-diagonally in one.
    """
    result: list[Op] = []
    adapted: dict[TensorRef, TensorRef] = {}
    for op in ops:
        op = reading(op, adapted)
        if isinstance(op.attributes, Lora):
            adapted[op.output] = op.inputs[1]
            continue
        loras = [other for other in ops if isinstance(other.attributes, Lora) and other.inputs[1].storage == op.output]
        if not loras:
            result.append(op)
            continue
        assert isinstance(op.attributes, Matmul), "adapters act on matmuls"
        weight = op.weights[0]
        rank = sum(lora.weights[0].rows for lora in loras)
        a = WeightRef(tuple(f"{source}.lora_a" for source in weight.sources), rank, weight.columns)
        b = WeightRef(tuple(f"{source}.lora_b" for source in weight.sources), weight.rows, rank)
        low = TensorRef(f"{op.output.name}.lora", op.output.rows, rank, "f32")
        result.append(Op("lora", f"{op.name}.lora", op.layer, op.inputs, low, Matmul(), (a,)))
        note = "lora_into_matmul: " + ", ".join(lora.name for lora in loras)
        result.append(
            replace(
                op,
                inputs=(*op.inputs, low),
                weights=(*op.weights, b),
                attributes=replace(op.attributes, lora=True),
                notes=(*op.notes, note),
            )
        )
    return result
