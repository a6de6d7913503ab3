"""The matrices of LoRA adapters on the device."""

from __future__ import annotations

from typing import Any

from inference.errors import DoesNotFit
from inference.formats.planar import FORMATS, PlanarTensor
from inference.gpu.buffers import BufferPool
from inference.kernels.dispatch import Binding, DeviceWeight, WeightPart
from inference.lora.adapter_set import AdapterSet
from inference.plan.ops import Plan, WeightRef


class AdapterWeights:
    """Every matrix of the adapters in use, f32, by WeightRef."""

    def __init__(self, pool: BufferPool, max_binding: int) -> None:
        self._pool = pool
        self._max_binding = max_binding
        self.placed: dict[WeightRef, DeviceWeight] = {}
        self.buffers: dict[Binding, Any] = {}

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(buffer.size for buffer in self.buffers.values())

    def upload(self, adapters: AdapterSet, plan: Plan) -> None:
        """Upload what `plan` names of the adapters; those before are freed only when there is room for the new ones.

        Matrices that are there already, of the same shape, are written over. Raises DoesNotFit.
        """
        named = [ref for op in plan.ops for ref in op.weights if ref.sources[0] in adapters.formats]
        tensors = {ref: adapters.load(ref) for ref in named}
        if tensors.keys() != self.placed.keys():
            self._replace(tensors)
        for ref, tensor in tensors.items():
            (binding,) = self.placed[ref].bindings(0)
            self._pool.upload(self.buffers[binding], tensor.planes["low"])
        self._pool.flush()

    def _replace(self, tensors: dict[WeightRef, PlanarTensor]) -> None:
        placed: dict[WeightRef, DeviceWeight] = {}
        buffers: dict[Binding, Any] = {}
        try:
            for ref, tensor in tensors.items():
                if tensor.nbytes > self._max_binding:
                    raise DoesNotFit(f"adapter matrix {ref.name} needs {tensor.nbytes:,} bytes in one binding")
                weight = DeviceWeight(ref.name, FORMATS["f32"], ref.columns, (WeightPart(0, ref.rows),))
                (binding,) = weight.bindings(0)
                placed[ref] = weight
                buffers[binding] = self._pool.create("weights", tensor.nbytes, binding.name)
        except DoesNotFit:
            for buffer in buffers.values():
                self._pool.destroy(buffer)
            raise
        for buffer in self.buffers.values():
            self._pool.destroy(buffer)
        self.placed, self.buffers = placed, buffers
