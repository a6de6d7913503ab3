"""What a kernel file hands to the executor: dispatches with named bindings, not yet bound to buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from inference.formats.planar import PlanarFormat
from inference.kernels.base import KernelPreference
from inference.models.config import Activation, ClampedSwiglu
from inference.plan.ops import DType, Op, TensorRef, WeightRef

if TYPE_CHECKING:
    from inference.gpu.device import DeviceCaps

Constant = bool | int | float | str | tuple[int, ...]


@dataclass(frozen=True)
class Binding:
    """A buffer by what it is for.

    space "tensor": an activation. "weight": one plane of one part of a weight. "kv": part of a KV cache, by layer.
    "rope": the table of a layer's RopeConfig, by layer. "state": `position` and `rows` of this step, u32,
    and in a batch the position of each row.
    "tokens": the ids of this step, u32. "sampling", "counts", "result", "scratch": the sampler's.
    """

    space: Literal["tensor", "weight", "kv", "rope", "state", "tokens", "sampling", "counts", "result", "scratch"]
    name: str = ""


@dataclass(frozen=True)
class Dispatch:
    """One dispatch: shaders/`shader` rendered with `constants`, `bindings` at @group(0) in order."""

    shader: str
    constants: Mapping[str, Constant]
    bindings: tuple[Binding, ...]
    grid: tuple[int, int, int]


@dataclass(frozen=True)
class WeightPart:
    """Rows first_row .. first_row + rows - 1 of a weight, in buffers of their own (a binding's size is limited)."""

    first_row: int
    rows: int


@dataclass(frozen=True)
class DeviceWeight:
    """How a weight lies on the device."""

    name: str
    format: PlanarFormat
    columns: int
    parts: tuple[WeightPart, ...]

    def bindings(self, part: int) -> tuple[Binding, ...]:
        """The planes of one part, in the order that weights.wgsl declares them."""
        return tuple(Binding("weight", f"{self.name}/{part}/{plane}") for plane in self.planes)

    @property
    def planes(self) -> tuple[str, ...]:
        return tuple(self.format.row_words(self.columns))

    def constants(self) -> dict[str, Constant]:
        """The constants of weights.wgsl. Strides are in words a row."""
        f = self.format
        strides = f.row_words(self.columns)
        return {
            "FORMAT": f.name,
            "COLUMNS": self.columns,
            "LOW_BITS": f.low_bits,
            "HIGH_BITS": f.high_bits,
            "GROUP_SIZE": f.group_size,
            "SCALE_FORM": f.scale_form,
            "CODE_BITS": f.code_bits,
            "ZERO": f.zero,
            "TABLE": f.table,
            "LOW_STRIDE": strides["low"],
            "HIGH_STRIDE": strides.get("high", 0),
            "SCALE_STRIDE": strides.get("scales", 0),
            "SUPER_STRIDE": strides.get("supers", 0),
        }


@dataclass(frozen=True)
class CacheLayout:
    """How kernels find the keys and values of one layer.

    shaders/kv/read_NAME.wgsl gives key_at and value_at, and declares the buffers of `bindings`, then those of
    `read_bindings`, in this order. The shader `append` writes; shaders/kv/append.wgsl does it through store_key and
    store_value of shaders/kv/write_NAME.wgsl, which declares the buffers of `bindings`. All may use `constants`.
    `before_append` runs before the layer's append in each step.
    """

    name: str
    bindings: tuple[Binding, ...]
    constants: Mapping[str, Constant] = field(default_factory=dict)
    read_bindings: tuple[Binding, ...] = ()
    append: str = "kv/append.wgsl"
    before_append: tuple[Dispatch, ...] = ()

    def reading(self) -> dict[str, Constant]:
        """The constants of a shader that reads the cache."""
        return {"READ": f"kv/read_{self.name}.wgsl", **self.constants}

    def writing(self) -> dict[str, Constant]:
        """The constants of a shader that writes the cache."""
        return {"WRITE": f"kv/write_{self.name}.wgsl", **self.constants}


@dataclass(frozen=True)
class KernelContext:
    """What selection and dispatch building may know besides the op.

    `rows` is the most rows of the step; `kv_bucket` the most keys that attention will see before the
    program is made again; `weights` holds each WeightRef's place on the device, `layouts` each layer's cache. In a
    `batch` each row belongs to another sequence, and `layouts` tell where all of them are found.
    """

    caps: DeviceCaps
    rows: int
    kv_dtype: DType
    kv_bucket: int
    weights: Mapping[WeightRef, DeviceWeight]
    layouts: Mapping[int, CacheLayout] = field(default_factory=dict)
    preferences: Sequence[KernelPreference] = field(default_factory=tuple)
    batch: bool = False


def activation_constants(activation: Activation | None) -> dict[str, Constant]:
    """The constants of activation.wgsl."""
    if isinstance(activation, ClampedSwiglu):
        return {"ACTIVATION": "clamped_swiglu", "ALPHA": activation.alpha, "LIMIT": activation.limit}
    return {"ACTIVATION": activation or ""}


def tensor(ref: TensorRef) -> Binding:
    """The buffer of an activation; of a view, its parent's."""
    return Binding("tensor", ref.storage.name)


STATE = Binding("state")


def layer_of(op: Op) -> int:
    """The layer of an op that lies in one."""
    assert op.layer is not None
    return op.layer


def grid_for(workgroups: int, caps: DeviceCaps) -> tuple[int, int, int]:
    """A grid of at least `workgroups`, folded over y where x would pass the device's limit.

    The kernel numbers its workgroup as x + y * num_workgroups.x and leaves early past the end.
    """
    if workgroups <= caps.max_workgroups:
        return max(1, workgroups), 1, 1
    rows = -(-workgroups // caps.max_workgroups)
    return -(-workgroups // rows), rows, 1
