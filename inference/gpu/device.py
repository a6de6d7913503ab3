"""Choosing an adapter, opening a device on it, and what it can do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import wgpu

from inference.errors import DeviceUnavailable
from inference.plan.ops import DType

# How good an adapter type is, best first. A software adapter ("CPU") computes on the processor.
TYPE_RANK = {"DiscreteGPU": 0, "IntegratedGPU": 1, "VirtualGPU": 2, "Unknown": 3, "CPU": 4}
BACKEND_RANK = {"Vulkan": 0, "Metal": 0, "D3D12": 1, "OpenGL": 2}
USUAL_SUBGROUP = 32
OPTIONAL_FEATURES = ("shader-f16", "subgroup", "timestamp-query")
RAISED_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroups-per-dimension",
)


@dataclass(frozen=True)
class AdapterReport:
    """An adapter found on this machine, and why it was chosen or not."""

    name: str
    backend: str
    type: str
    software: bool
    features: tuple[str, ...]
    limits: dict[str, int]
    chosen: bool
    reason: str


@dataclass(frozen=True)
class DeviceCaps:
    """What kernels may rely on. Sizes in bytes.

    `subgroup_size` is the smallest that a probe shader saw, 0 without subgroups; `subgroup_reason` says
    why subgroups are not used where the feature is there.
    """

    name: str
    backend: str
    software: bool
    f16: bool
    timestamps: bool
    subgroup_size: int
    subgroup_reason: str
    max_workgroup_storage: int
    max_invocations: int
    max_workgroups: int
    max_binding: int
    max_buffer: int
    max_storage_buffers: int


def describe_adapters() -> list[AdapterReport]:
    """All adapters, the chosen one marked, each with its reason. An empty list where there is none."""
    adapters = wgpu.gpu.enumerate_adapters_sync()
    if not adapters:
        return []
    best = min(range(len(adapters)), key=lambda index: (*_rank(adapters[index]), index))
    return [_report(adapter, index == best, adapters[best]) for index, adapter in enumerate(adapters)]


def choose_adapter() -> tuple[Any, AdapterReport]:
    """The best adapter of this machine; raises DeviceUnavailable where there is none."""
    adapters = wgpu.gpu.enumerate_adapters_sync()
    if not adapters:
        raise DeviceUnavailable(
            "no WebGPU adapter was found; install a GPU driver with Vulkan, Metal or D3D12, "
            "or Mesa's software Vulkan, or use --device cpu"
        )
    adapter = min(adapters, key=_rank)
    return adapter, _report(adapter, True, adapter)


def open_device(adapter: Any) -> Any:
    """A wgpu device with the optional features and the adapter's own limits.

    Raises DeviceUnavailable where the driver refuses.
    """
    features = [feature for feature in OPTIONAL_FEATURES if feature in adapter.features]
    limits = {name: adapter.limits[name] for name in RAISED_LIMITS if name in adapter.limits}
    try:
        return adapter.request_device_sync(required_features=features, required_limits=limits)
    except (RuntimeError, wgpu.GPUError) as error:
        raise DeviceUnavailable(
            f"the adapter {adapter.info['device']} refused a device ({_first_line(error)}); "
            "update its driver or use --device cpu"
        ) from error


def describe_caps(adapter: Any, device: Any, subgroup_size: int, subgroup_reason: str) -> DeviceCaps:
    """What kernels may rely on, from the device's own limits."""
    info = adapter.info
    software = info["adapter_type"] == "CPU"
    return _caps(
        info["device"], info["backend_type"], software, device.features, device.limits, subgroup_size, subgroup_reason
    )


def expected_caps(report: AdapterReport) -> DeviceCaps:
    """What kernels may rely on once a device is opened on the adapter. The size of a subgroup is a guess till then."""
    size = USUAL_SUBGROUP if "subgroup" in report.features else 0
    return _caps(report.name, report.backend, report.software, report.features, report.limits, size, "")


def storage_dtypes(asked: str, f16: bool, software: bool) -> tuple[DType, DType]:
    """The dtypes of stored activations, and of keys and values, for --dtype `asked`.

    Keys and values in f16 halve the cache and lose nothing that sampling would notice; activations may overflow.
    """
    dtype: DType = "f16" if asked == "f16" else "f32"
    return dtype, "f16" if asked == "auto" and f16 and not software else dtype


def _caps(
    name: str,
    backend: str,
    software: bool,
    features: Collection[str],
    limits: Mapping[str, int],
    subgroup_size: int,
    subgroup_reason: str,
) -> DeviceCaps:
    return DeviceCaps(
        name=name,
        backend=backend,
        software=software,
        f16="shader-f16" in features,
        timestamps="timestamp-query" in features,
        subgroup_size=subgroup_size,
        subgroup_reason=subgroup_reason,
        max_workgroup_storage=limits["max-compute-workgroup-storage-size"],
        max_invocations=min(limits["max-compute-invocations-per-workgroup"], limits["max-compute-workgroup-size-x"]),
        max_workgroups=limits["max-compute-workgroups-per-dimension"],
        # Offsets inside a binding are 32-bit in the shaders; drivers refuse bindings of 2 GiB and more.
        max_binding=min(limits["max-storage-buffer-binding-size"], 2**31 - 4),
        max_buffer=limits["max-buffer-size"],
        max_storage_buffers=limits["max-storage-buffers-per-shader-stage"],
    )


def _rank(adapter: Any) -> tuple[int, int]:
    info = adapter.info
    return TYPE_RANK.get(info["adapter_type"], 3), BACKEND_RANK.get(info["backend_type"], 3)


def _report(adapter: Any, chosen: bool, best: Any) -> AdapterReport:
    info = adapter.info
    software = info["adapter_type"] == "CPU"
    if chosen:
        reason = "chosen: the only kind here is software" if software else "chosen: the best GPU here"
    elif _rank(adapter)[0] > _rank(best)[0]:
        reason = f"passed over: {best.info['device']} is a better kind of device ({best.info['adapter_type']})"
    elif _rank(adapter)[1] > _rank(best)[1]:
        reason = f"passed over: {best.info['backend_type']} is preferred to {info['backend_type']}"
    else:
        reason = "passed over: it ranks the same as the chosen one and comes later"
    return AdapterReport(
        name=info["device"],
        backend=info["backend_type"],
        type=info["adapter_type"],
        software=software,
        features=tuple(feature for feature in OPTIONAL_FEATURES if feature in adapter.features),
        limits={name: adapter.limits[name] for name in RAISED_LIMITS if name in adapter.limits},
        chosen=chosen,
        reason=reason,
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
