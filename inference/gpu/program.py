"""A plan made ready to run: kernels decided, buffers assigned, every dispatch bound once and reused each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from inference.gpu.buffers import BufferPool
from inference.gpu.encoder import BoundDispatch
from inference.gpu.pipelines import PipelineCache
from inference.kernels import attention, sample
from inference.kernels.append_in_matmul import fold_appends
from inference.kernels.base import Decision
from inference.kernels.dispatch import Binding, Dispatch, KernelContext
from inference.kernels.registry import KERNELS
from inference.plan.ops import ITEMSIZE, Plan, Sample
from inference.plan.place import tensors_on_webgpu


@dataclass(frozen=True)
class Program:
    """The bound dispatches of one plan, with the decisions behind them; `per_op` counts each op's dispatches."""

    plan: Plan
    decisions: tuple[Decision, ...]
    per_op: tuple[int, ...]
    dispatches: tuple[BoundDispatch, ...]

    @property
    def by_op(self) -> list[tuple[BoundDispatch, ...]]:
        """The dispatches of each op."""
        ends = list(accumulate(self.per_op))
        return [self.dispatches[end - count : end] for end, count in zip(ends, self.per_op, strict=True)]


def assign_slots(plan: Plan) -> tuple[dict[str, int], list[int]]:
    """Slots for the activations: (slot of each tensor's name, bytes of each slot).

    A slot is free again after the last op that reads its tensor; an op's output never shares a slot with
    its inputs, since no buffer may be read and written in one dispatch.
    """
    touched = [list(dict.fromkeys(tensor.storage for tensor in tensors_on_webgpu(op))) for op in plan.ops]
    last_use = {tensor.name: index for index, tensors in enumerate(touched) for tensor in tensors}
    slots: dict[str, int] = {}
    sizes: list[int] = []
    free: list[int] = []
    # What makes the inputs of an append may append, too, and then writes its output: that has a slot from there on.
    appended = {op.inputs[0].storage.name: op.output.storage for op in plan.ops if op.kind == "kv_append"}
    for index, tensors in enumerate(touched):
        # What an operation writes comes first; all others are there already.
        written = tensors[0]
        for output in filter(None, (written, appended.get(written.name))):
            if output.name in slots:
                continue
            size = output.rows * output.columns * ITEMSIZE[output.dtype]
            slot = min(free, key=lambda candidate: abs(sizes[candidate] - size), default=None)
            if slot is None:
                slot = len(sizes)
                sizes.append(0)
            else:
                free.remove(slot)
            sizes[slot] = max(sizes[slot], size)
            slots[output.name] = slot
        free += [slots[tensor.name] for tensor in tensors if last_use[tensor.name] == index]
    return slots, sizes


def decide(plan: Plan, context: KernelContext) -> tuple[list[Decision], list[tuple[Dispatch, ...]]]:
    """The kernel and the dispatches of each op. Raises KernelUnavailable."""
    decisions, dispatches = [], []
    for op in plan.ops:
        kernel = KERNELS[op.kind]
        decision = kernel.choose(op, context)
        decisions.append(decision)
        dispatches.append(kernel.dispatches(op, decision, context))
    return fold_appends(plan.ops, decisions, dispatches, context)


def make_scratch(plan: Plan, context: KernelContext, pool: BufferPool) -> dict[Binding, Any]:
    """Buffers for the activations of `plan` and for what kernels keep between their own dispatches."""
    slots, sizes = assign_slots(plan)
    buffers = [pool.create("scratch", size, f"activations {index}") for index, size in enumerate(sizes)]
    bound = {Binding("tensor", name): buffers[slot] for name, slot in slots.items()}
    attention_bytes = max(
        (attention.scratch_bytes(op, context) for op in plan.ops if op.kind == "attention"), default=0
    )
    if attention_bytes:
        bound[Binding("scratch", "attention")] = pool.create("scratch", attention_bytes, "attention partials")
    for op in plan.ops:
        if isinstance(op.attributes, Sample):
            size = op.inputs[0].rows * sample.scratch_bytes(op.inputs[0].columns)
            bound[Binding("scratch", "sample")] = pool.create("scratch", size, "sampling candidates")
    return bound


def make_program(
    plan: Plan,
    context: KernelContext,
    buffers: Mapping[Binding, Any],
    device: Any,
    pipelines: PipelineCache,
) -> Program:
    """Bind every dispatch of `plan` to `buffers`."""
    decisions, dispatches = decide(plan, context)
    pipelines.compile((dispatch.shader, dispatch.constants) for group in dispatches for dispatch in group)
    bound = []
    for op, group in zip(plan.ops, dispatches, strict=True):
        for dispatch in group:
            pipeline = pipelines.get(dispatch.shader, dispatch.constants)
            entries = [
                {"binding": index, "resource": {"buffer": buffers[binding]}}
                for index, binding in enumerate(dispatch.bindings)
            ]
            bind_group = device.create_bind_group(layout=pipelines.layout(pipeline), entries=entries)
            bound.append(BoundDispatch(pipeline, bind_group, dispatch.grid, op.output.name))
    return Program(plan, tuple(decisions), tuple(len(group) for group in dispatches), tuple(bound))
