"""Where a model is to run, and how much memory is known to be there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inference.errors import DeviceUnavailable
from inference.host_memory import physical_bytes

if TYPE_CHECKING:
    from inference.gpu.device import DeviceCaps
    from inference.plan.ops import Device, DType

SHARED_TYPES = ("CPU", "IntegratedGPU")
"""Types of adapters whose memory is the machine's."""


@dataclass(frozen=True)
class FitTarget:
    """A device, how it is named, and the `memory` that can be had there: `source` says whose or, where it is None, why
    that is not known. `caps` is None on the CPU; the dtypes are those of stored activations and of the KV cache."""

    device: Device
    name: str
    memory: int | None
    source: str
    caps: DeviceCaps | None = None
    dtype: DType = "f32"
    kv_dtype: DType = "f32"
    shared: bool = False
    """Whether an adapter's memory is the machine's."""

    def beside(self, taken: int) -> FitTarget:
        """The target as it is where another engine needs `taken` bytes of its memory."""
        if not taken or self.memory is None:
            return self
        return replace(self, memory=max(0, self.memory - taken), source=f"{self.source} left beside another engine")


def cpu_target() -> FitTarget:
    """NumPy, with all the machine's memory."""
    memory = physical_bytes()
    return FitTarget(
        "cpu", "the CPU", memory, "the system does not tell its memory" if memory is None else "the machine"
    )


def webgpu_target(caps: DeviceCaps, adapter_type: str, dtype: str, gpu_memory: int | None) -> FitTarget:
    """An adapter, with --dtype `dtype`. WebGPU tells no adapter's memory: it is what `gpu_memory` allows, or the
    machine's where the adapter has none of its own. What a graphics driver tells elsewhere is no limit either: some
    go on in the machine's memory.
    """
    from inference.gpu.device import storage_dtypes

    memory, source = gpu_memory, "--gpu-memory"
    if memory is None and adapter_type in SHARED_TYPES:
        memory, source = physical_bytes(), "the machine"
    if memory is None:
        source = "WebGPU does not tell how much memory the adapter has; --gpu-memory sets a limit"
    dtypes = storage_dtypes(dtype, caps.f16, caps.software)
    return FitTarget("webgpu", caps.name, memory, source, caps, *dtypes, shared=adapter_type in SHARED_TYPES)


def find_target(device: str, dtype: str = "auto", gpu_memory: int | None = None) -> FitTarget:
    """The target of a model opened with these options. Looks for adapters in a process of its own (a second or two).

    Raises DeviceUnavailable where "webgpu" is asked for and cannot be had.
    """
    if device == "cpu":
        return cpu_target()
    from inference.gpu.device import DeviceCaps
    from inference.gpu.survey import survey

    found = survey()
    if found.caps is None and device == "webgpu":
        raise DeviceUnavailable(found.problem or f"{found.device_reason}; use --device cpu")
    if found.caps is None or (device == "auto" and found.device == "cpu"):
        return cpu_target()
    chosen = next(adapter for adapter in found.adapters if adapter["chosen"])
    return webgpu_target(DeviceCaps(**found.caps), chosen["type"], dtype, gpu_memory)
