"""A plan made ready for NumPy: each operation with its weights, and what no later operation reads."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

import numpy as np

from inference.plan.ops import ITEMSIZE, Op, Plan, WeightRef


@dataclass(frozen=True)
class Step:
    """An operation with its weights (rows, columns). `done` names the activations that no later operation reads."""

    op: Op
    weights: tuple[np.ndarray, ...]
    done: tuple[str, ...]


def make_steps(plan: Plan, weight: Callable[[WeightRef], np.ndarray], kept: Set[str]) -> tuple[Step, ...]:
    """The operations in order. `weight` gives the array of a reference; `kept` names what is read after them."""
    return tuple(
        Step(op, tuple(weight(ref) for ref in op.weights), tuple(name for name in done if name not in kept))
        for op, done in zip(plan.ops, last_reads(plan), strict=True)
    )


def last_reads(plan: Plan) -> list[tuple[str, ...]]:
    """For each operation the activations that it is the last to read. The plan's result is read after all of them."""
    last = {tensor.storage.name: index for index, op in enumerate(plan.ops) for tensor in op.inputs}
    return [
        tuple(dict.fromkeys(t.storage.name for t in op.inputs if last[t.storage.name] == index))
        for index, op in enumerate(plan.ops)
    ]


def activation_bytes(plan: Plan) -> int:
    """The most that the activations of `plan.rows` rows take at one time."""
    held: dict[str, int] = {}
    most = 0
    for op, done in zip(plan.ops, last_reads(plan), strict=True):
        # Inputs that no operation of the plan makes come from the other device.
        for tensor in (op.output, *(tensor.storage for tensor in op.inputs)):
            held[tensor.name] = tensor.rows * tensor.columns * ITEMSIZE[tensor.dtype]
        most = max(most, sum(held.values()))
        for name in done:
            held.pop(name)
    return most
