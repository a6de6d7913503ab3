"""Whether a model fits a device, told before it is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inference.errors import DoesNotFit, GlasschatError
from inference.fit_target import FitTarget, cpu_target
from inference.host_memory import physical_bytes
from inference.needs import PARTS, Need, Needs, Part
from inference.units import format_bytes

if TYPE_CHECKING:
    from inference.kv.layout import LayerGroup
    from inference.model_files import ModelFiles
    from inference.plan.place import Placement

CPU_WEIGHT_BYTES = 4
"""The NumPy executor holds every weight in f32."""

LEAST_CONTEXT = 512
"""The shortest context worth proposing."""

SMALLER_LAYOUTS = ("tiered-int8", "tiered-int4")
"""What is proposed where keys and values are too large, the better one first."""


@dataclass(frozen=True)
class Fit:
    """Bytes that a model needs on a device, and bytes that the device has; None where that is not known.

    `problem` names a buffer that is larger than the device allows, whatever its memory; "" where there is none.
    """

    needed: int | None = None
    available: int | None = None
    problem: str = ""

    @property
    def fits(self) -> bool | None:
        """None where it cannot be told."""
        if self.problem:
            return False
        if self.needed is None or self.available is None:
            return None
        return self.needed <= self.available


@dataclass(frozen=True)
class FitTable:
    """What a model takes at `context` tokens, part by part, against the memory and the limits of `target`."""

    model: str
    target: FitTarget
    context: int
    rows: tuple[Need, ...]
    problem: str = ""

    @property
    def fit(self) -> Fit:
        """The sum against the memory."""
        return Fit(sum(row.bytes for row in self.rows), self.target.memory, self.problem)

    def bytes_of(self, part: Part) -> int:
        """The sum of one part."""
        return sum(row.bytes for row in self.rows if row.part == part)

    @property
    def verdict(self) -> str:
        """One line: fits, does not fit (what is over, and by how much), or unknown and why."""
        fit = self.fit
        assert fit.needed is not None
        parts = ", ".join(f"{part} {format_bytes(self.bytes_of(part))}" for part in PARTS)
        needs = f"it needs {format_bytes(fit.needed)} at a context of {self.context:,} ({parts})"
        if self.problem:
            return f"does not fit {self.target.name}: {self.problem}"
        if fit.available is None:
            return f"unknown: {needs}; {self.target.source}"
        of = f"{format_bytes(fit.available)} of {self.target.source}"
        if fit.fits:
            return f"fits {self.target.name}: {needs}, of the {of}"
        over = format_bytes(fit.needed - fit.available)
        return f"does not fit {self.target.name}: {needs}, {over} more than the {of}"


def fit_by_size(file_bytes: int, parameters: int, device: str) -> Fit:
    """By the size of a model that is not here yet: its weights as `device` holds them, without a KV cache.

    `device` is "webgpu", "cpu", or "" while none is chosen. WebGPU does not tell how much memory an adapter has.
    """
    if device == "cpu":
        return Fit(parameters * CPU_WEIGHT_BYTES, physical_bytes())
    return Fit(file_bytes) if device else Fit()


def fit_table(
    files: ModelFiles, context: int, kv: str, target: FitTarget, placement: Placement | None = None
) -> FitTable:
    """The table of a model that is on this machine, by its description alone; no weight is read. With a `placement`,
    that of the part which it gives the target.

    Raises the errors of a model that cannot be used: BadModelFile, UnsupportedModel, LayoutUnavailable.
    """
    return _Model(files, target, placement).table(context, kv)


def require_fit(files: ModelFiles, context: int, kv: str, target: FitTarget) -> None:
    """Raises DoesNotFit, with what can be done, where it is certain that the model does not fit; else as fit_table."""
    model = _Model(files, target)
    table = model.table(context, kv)
    if table.fit.fits is False:
        raise DoesNotFit(f"{table.model} {table.verdict}; {_advice(model, table, kv)}")


def advice(files: ModelFiles, context: int, kv: str, target: FitTarget) -> str:
    """What can be done about a model that does not fit: the options with which it would, each tried."""
    model = _Model(files, target)
    return _advice(model, model.table(context, kv), kv)


class _Model:
    """A model on a target: what it needs whatever the context is worked out once."""

    def __init__(self, files: ModelFiles, target: FitTarget, placement: Placement | None = None) -> None:
        self.files = files
        self.target = target
        self._placement = placement
        self._fixed = _model_needs(files, target, placement)

    def table(self, context: int, kv: str) -> FitTable:
        # NumPy, which whoever only lists models does not need.
        from inference.kv.choose import choose_layouts
        from inference.placement import groups_on

        groups = choose_layouts(self.files.config, kv)
        if self._placement is not None:
            groups = groups_on(groups, self._placement, self.target.device)
        varying = _context_needs(self.files, groups, context, self.target)
        rows = self._fixed.rows + varying.rows
        in_order = tuple(row for part in PARTS for row in rows if row.part == part)
        problem = _over_limit({**self._fixed.buffers, **varying.buffers}, self.target)
        return FitTable(self.files.config.name, self.target, context, in_order, problem)

    def fits(self, context: int, kv: str) -> bool:
        """Whether it would, or it is not known that it would not."""
        try:
            return self.table(context, kv).fit.fits is not False
        except GlasschatError:
            return False


def _model_needs(files: ModelFiles, target: FitTarget, placement: Placement | None) -> Needs:
    if target.caps is None:
        from inference.cpu import needs as cpu

        return cpu.model_needs(files.config, files.store, placement)
    from inference.gpu import needs as gpu

    return gpu.model_needs(files.config, files.store, target.caps, target.dtype, target.kv_dtype, placement)


def _context_needs(files: ModelFiles, groups: tuple[LayerGroup, ...], context: int, target: FitTarget) -> Needs:
    config = files.config.for_context(context)
    if target.caps is None:
        from inference.cpu import needs as cpu

        return cpu.context_needs(config, groups, context)
    from inference.gpu import needs as gpu

    return gpu.context_needs(config, groups, context, target.caps, target.kv_dtype)


def _over_limit(buffers: dict[str, int], target: FitTarget) -> str:
    """The largest buffer, where the device allows none so large."""
    if target.caps is None or not buffers:
        return ""
    limits = {
        "max-storage-buffer-binding-size": target.caps.max_binding,
        "max-buffer-size": target.caps.max_buffer,
    }
    limit = min(limits, key=lambda name: limits[name])
    label = max(buffers, key=lambda label: buffers[label])
    if buffers[label] <= limits[limit]:
        return ""
    allowed = f"the device allows {format_bytes(limits[limit])} ({limit})"
    return f"{label} needs one buffer of {format_bytes(buffers[label])}, {allowed}"


def _advice(model: _Model, table: FitTable, kv: str) -> str:
    ways = [*_ways(model, table.context, kv)]
    return f"it would with {' or '.join(ways)}" if ways else "choose a smaller model, or a smaller quantisation of it"


def _ways(model: _Model, context: int, kv: str) -> Iterator[str]:
    """Options with which the model would fit, each alone."""
    shorter = context // 2
    while shorter >= LEAST_CONTEXT:
        if model.fits(shorter, kv):
            yield f"--context {shorter}"
            break
        shorter //= 2
    if layout := next((layout for layout in SMALLER_LAYOUTS if layout != kv and model.fits(context, layout)), None):
        yield f"--kv {layout}"
    if model.target.caps is None:
        return
    from inference.weights import WeightStore

    for precision in ("q8", "q4"):
        store = WeightStore(model.files.tensors, model.files.config, precision)
        files = replace(model.files, store=store)
        if store.formats != model.files.store.formats and _Model(files, model.target).fits(context, kv):
            yield f"--weights {precision}"
            break
    if _Model(model.files, cpu_target()).fits(context, kv):
        yield "--device cpu"
