"""What is dropped when, and the memory that follows from it."""

from __future__ import annotations

from inference.cpu.program import activation_bytes, last_reads
from inference.plan.ops import Add, Op, Plan, TensorRef


def tensor(name: str, columns: int) -> TensorRef:
    return TensorRef(name, 2, columns, "f32")


def add(output: TensorRef, *inputs: TensorRef) -> Op:
    return Op("add", output.name, None, inputs, output, Add())


def test_an_activation_is_held_for_as_long_as_it_is_read() -> None:
    a, b, c, d = tensor("a", 10), tensor("b", 100), tensor("c", 1), tensor("d", 10)
    half = b.view("b.half", 0, 50)
    plan = Plan((add(a), add(b, a), add(c, half, half), add(d, c, a)), 2, "last", "f32")
    assert last_reads(plan) == [(), (), ("b",), ("c", "a")]
    # a, b and c together, two rows each.
    assert activation_bytes(plan) == 2 * 4 * (10 + 100 + 1)
