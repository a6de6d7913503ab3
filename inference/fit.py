"""Whether a model fits a device, from what is known before it is opened."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from inference.errors import GlasschatError
from inference.host_memory import physical_bytes

CPU_WEIGHT_BYTES = 4
"""The NumPy executor holds every weight in f32."""


@dataclass(frozen=True)
class Fit:
    """Bytes that a model needs on a device, and bytes that the device has; None where that is not known."""

    needed: int | None = None
    available: int | None = None

    @property
    def fits(self) -> bool | None:
        """None where it cannot be told."""
        if self.needed is None or self.available is None:
            return None
        return self.needed <= self.available


def fit_by_size(file_bytes: int, parameters: int, device: str) -> Fit:
    """By the size of a model that is not here yet: its weights as `device` holds them, without a KV cache.

    `device` is "webgpu", "cpu", or "" while none is chosen. WebGPU does not tell how much memory an adapter has.
    """
    if device == "cpu":
        return Fit(parameters * CPU_WEIGHT_BYTES, physical_bytes())
    return Fit(file_bytes) if device else Fit()


def fit_of_file(path: Path, device: str) -> Fit:
    """By the file of a model, whose metadata takes some 40 ms to read: its weights, and on the CPU the keys and values
    of a full context in the layout that "auto" chooses. Nothing is known of a file that cannot be used."""
    if device != "cpu":
        return fit_by_size(path.stat().st_size, 0, device)
    # NumPy, which whoever only lists models does not need.
    from inference.cpu.executor import PREFILL_CHUNK
    from inference.formats.gguf import open_gguf
    from inference.kv.choose import choose_layouts
    from inference.kv.factory import NumpyCaches
    from inference.loading import OpenOptions, settle_context
    from inference.models.families import config_from_gguf

    try:
        file = open_gguf(path)
        config = config_from_gguf(file)
        caches = NumpyCaches(config, choose_layouts(config, "auto"), PREFILL_CHUNK)
    except GlasschatError:
        return Fit()
    kv_bytes = caches.new(settle_context(config, OpenOptions())).stats().capacity_bytes
    parameters = sum(prod(tensor.shape) for tensor in file.tensors.values())
    return Fit(parameters * CPU_WEIGHT_BYTES + kv_bytes, physical_bytes())
