"""Which device runs which part of a plan, and what is copied between them: exactly what the other one reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from inference.plan.ops import ITEMSIZE, Copy, Device, DType, Op, Plan, TensorRef


@dataclass(frozen=True)
class Placement:
    """The device of each part of a model. `attention` is, by layer, where its KV cache lies and its attention runs.

    `reason` says why everything is where it is.
    """

    embedding: Device
    layers: tuple[Device, ...]
    attention: tuple[Device, ...]
    head: Device
    reason: str

    @property
    def devices(self) -> frozenset[Device]:
        """Every device that has a part."""
        return frozenset((self.embedding, *self.layers, *self.attention, self.head))

    @property
    def split(self) -> bool:
        """Whether both devices take part."""
        return len(self.devices) > 1

    def device_of(self, op: Op) -> Device:
        """The device of an operation.

        The last row is taken where the last layer has made it. Tokens of a split model are sampled on the CPU.
        """
        if op.layer is not None:
            return (self.attention if _belongs_to_cache(op) else self.layers)[op.layer]
        match op.kind:
            case "embed":
                return self.embedding
            case "last_row":
                return self.layers[-1]
            case "sample":
                return "cpu" if self.split else self.head
            case _:
                return self.head


@dataclass(frozen=True)
class Segment:
    """Consecutive operations on one device. `kept` names the tensors that operations after them read."""

    device: Device
    plan: Plan
    kept: frozenset[str]
    last: bool

    def copies(self, to: Device) -> list[Op]:
        """Its copies to that device."""
        return [op for op in self.plan.ops if op.attributes == Copy(to)]


def whole(device: Device, num_layers: int, reason: str = "") -> Placement:
    """Everything on one device."""
    layers = (device,) * num_layers
    return Placement(device, layers, layers, device, reason)


def place(plan: Plan, placement: Placement) -> Plan:
    """The fused plan with the device of each operation, and a copy wherever one reads what the other device made.

    NumPy computes in f32: that is the dtype of every tensor on the CPU. What is copied is copied once for all that
    read it there.
    """
    ops: list[Op] = []
    found: dict[str, dict[Device, TensorRef]] = {}
    for op in plan.ops:
        device = placement.device_of(op)
        inputs = []
        for tensor in op.inputs:
            there = found[tensor.storage.name]
            if device not in there:
                (made,) = there.values()
                target = replace(made, name=copied_name(made, device), dtype=_dtype(tensor, device))
                ops.append(Op("copy", f"to_{device}", op.layer, (made,), target, Copy(device), device="webgpu"))
                there[device] = target
            inputs.append(_placed(tensor, there[device]))
        output = replace(op.output, dtype=_dtype(op.output, device))
        found[op.output.name] = {device: output}
        ops.append(replace(op, inputs=tuple(inputs), output=output, device=device))
    return replace(plan, ops=tuple(ops))


def copied_name(tensor: TensorRef, device: Device) -> str:
    """The name of a tensor's copy on that device."""
    return f"{tensor.name}.on_{device}"


def part_on(plan: Plan, device: Device) -> Plan:
    """The operations of a placed plan that `device` runs."""
    return replace(plan, ops=tuple(op for op in plan.ops if op.device == device))


def segments(plan: Plan) -> list[Segment]:
    """A placed plan as the devices take turns in it."""
    found: list[Segment] = []
    runs = [(device, tuple(ops)) for device, ops in groupby(plan.ops, key=lambda op: op.device)]
    read: frozenset[str] = frozenset()
    for device, ops in reversed(runs):
        assert device is not None, "only placed plans have segments"
        found.append(Segment(device, replace(plan, ops=ops), read, last=not found))
        read |= {tensor.storage.name for op in ops for tensor in op.inputs}
    return found[::-1]


def moved_bytes(op: Op) -> int:
    """Bytes that a copy moves for each of its rows, in the dtype of the WebGPU side; 0 for all other operations."""
    if not isinstance(op.attributes, Copy):
        return 0
    on_webgpu = op.output if op.attributes.to == "webgpu" else op.inputs[0]
    return on_webgpu.columns * ITEMSIZE[on_webgpu.dtype]


def tensors_on_webgpu(op: Op) -> Sequence[TensorRef]:
    """What an operation of WebGPU writes and reads in the device's memory; one side of a copy lies elsewhere."""
    if not isinstance(op.attributes, Copy):
        return op.output, *op.inputs
    return (op.output,) if op.attributes.to == "webgpu" else op.inputs


def _belongs_to_cache(op: Op) -> bool:
    """Whether it works on the queries and keys of a layer between their projections and the cache, or on the cache."""
    return op.kind in ("kv_append", "attention", "rope") or op.name in ("attention.q_norm", "attention.k_norm")


def _dtype(tensor: TensorRef, device: Device) -> DType:
    return "f32" if device == "cpu" else tensor.dtype


def _placed(tensor: TensorRef, storage: TensorRef) -> TensorRef:
    """`tensor` where its storage is this one."""
    if tensor.parent is None:
        return storage
    return replace(tensor, dtype=storage.dtype, parent=storage)
