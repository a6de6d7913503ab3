"""How many layers go to WebGPU: as many as were asked for, or as fit its memory."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING

from inference.errors import DoesNotFit
from inference.fit import FitTable, fit_table, require_fit
from inference.fit_target import FitTarget, cpu_target
from inference.placement import describe, first_layers
from inference.plan.ops import Device
from inference.plan.place import Placement, whole
from inference.units import format_bytes

if TYPE_CHECKING:
    from inference.model_files import ModelFiles


def choose_placement(
    files: ModelFiles,
    context: int,
    kv: str,
    target: FitTarget,
    gpu_layers: int | None = None,
    kv_device: Device = "webgpu",
) -> Placement:
    """Where the parts of a model go, of which WebGPU's are on `target`, and why; `gpu_layers` None is as many as fit.

    All layers are on WebGPU where its memory is not known. Raises DoesNotFit where it is certain that the model does
    not fit in this way, or in no way.
    """
    layers = files.config.num_layers
    if target.device == "cpu" or gpu_layers == 0:
        require_fit(files, context, kv, target if target.device == "cpu" else cpu_target())
        return whole("cpu", layers, "" if target.device == "cpu" else "--gpu-layers 0 was asked for")
    search = _Search(files, context, kv, target, kv_device)
    if gpu_layers is None:
        return search.best()
    placement = first_layers(
        layers, min(gpu_layers, layers), kv_device, reason=f"--gpu-layers {gpu_layers} was asked for"
    )
    if not placement.split:
        require_fit(files, context, kv, target)
    elif problem := search.problem(placement):
        where = f"{files.config.name} with {describe(placement)}"
        raise DoesNotFit(f"{where} {problem}; without --gpu-layers, as much goes to webgpu as fits")
    return placement


class _Search:
    """One model on one adapter and the CPU."""

    def __init__(self, files: ModelFiles, context: int, kv: str, target: FitTarget, kv_device: Device) -> None:
        self._files, self._context, self._kv, self._target = files, context, kv, target
        layers = files.config.num_layers
        # From the most on WebGPU to the least.
        self._candidates = [
            first_layers(
                layers, layers, kv_device, reason="--kv-device cpu was asked for" if kv_device == "cpu" else ""
            ),
            first_layers(layers, layers, kv_device, head="cpu"),
            *(first_layers(layers, count, kv_device) for count in range(layers - 1, 0, -1)),
        ]

    def problem(self, placement: Placement) -> str:
        """Why it is certain that a placement does not fit; "" where it does, or that is not known."""
        table = self._table(self._target, placement)
        if table.fit.fits is False:
            return table.verdict
        if not placement.split:
            return ""
        machine = cpu_target()
        rest = self._table(machine, placement)
        if rest.fit.fits is False:
            return rest.verdict
        together = (table.fit.needed or 0) + (rest.fit.needed or 0)
        if self._target.shared and machine.memory is not None and together > machine.memory:
            return f"does not fit the machine: both parts need {format_bytes(together)} of its memory"
        return ""

    def best(self) -> Placement:
        """The candidate with the most on WebGPU that fits, else everything on the CPU."""
        wholly, *parts = self._candidates
        if not self.problem(wholly):
            return wholly
        over = self._table(self._target, wholly).verdict
        # What WebGPU needs falls from one candidate to the next.
        first = bisect_left(parts, True, key=lambda each: self._table(self._target, each).fit.fits is not False)
        if first < len(parts) and not self.problem(parts[first]):
            return replace(parts[first], reason=f"all of it {over}")
        alone = self._table(cpu_target(), whole("cpu", len(wholly.layers)))
        if alone.fit.fits is False:
            require_fit(self._files, self._context, self._kv, self._target)
        return whole("cpu", len(wholly.layers), f"not one layer has room on webgpu: all of it {over}")

    def _table(self, target: FitTarget, placement: Placement) -> FitTable:
        return fit_table(self._files, self._context, self._kv, target, placement)
