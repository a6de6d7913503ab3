"""One-row matmuls of a model's shapes in every format, beside what the device's memory can do at best: the report
behind `chat bench --matmul`.

Each matmul is the one that the decode plan has, with what is fused into it, over as many different matrices as no cache
holds. Times are the GPU's own.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from inference.errors import DeviceUnavailable
from inference.formats.planar import FORMATS
from inference.gpu.buffers import BufferPool
from inference.gpu.device import DeviceCaps, choose_adapter, describe_caps, open_device
from inference.gpu.encoder import BoundDispatch, PassEncoder
from inference.gpu.pipelines import PipelineCache
from inference.gpu.probes import probe_subgroups
from inference.gpu.program import make_program
from inference.gpu.timing import time_passes
from inference.gpu.weights import DeviceWeights
from inference.kernels.dispatch import Binding, KernelContext, grid_for, tensor
from inference.plan.build import build
from inference.plan.fuse import fuse
from inference.plan.ops import Op, Plan
from inference.random_model import RandomStore, random_config
from inference.shapes import SHAPES

Report = Callable[[str], None]

FORMAT_NAMES = tuple(name for name in FORMATS if name not in ("f32", "bf16"))
"""Every format but f32, which no model of such a size has, and bf16, which is read as f16 is."""

# More than any cache holds; a software adapter has no use for it.
MATRICES_BYTES = 256 * 2**20
COPY_BYTES, SOFTWARE_COPY_BYTES = 512 * 2**20, 32 * 2**20
REPEATS = 5
COPY_INVOCATIONS, COPY_UNROLL = 256, 4


@dataclass(frozen=True)
class MatmulSpeed:
    """One row times a matrix (rows, columns) of `weight_bytes`, `matrices` of them one after another.

    `seconds` is for one where nothing depends on the one before, `in_turn_seconds` where each waits for it, as in
    decoding. Medians.
    """

    name: str
    format: str
    rows: int
    columns: int
    weight_bytes: int
    matrices: int
    variant: str
    seconds: float
    in_turn_seconds: float

    @property
    def gbs(self) -> float:
        """10^9 bytes of weights read a second."""
        return self.weight_bytes / self.seconds / 1e9

    @property
    def in_turn_gbs(self) -> float:
        """The same in turn."""
        return self.weight_bytes / self.in_turn_seconds / 1e9


@dataclass(frozen=True)
class MatmulReport:
    """The table. `copy_gbs` counts what a copy of `copy_bytes` reads and what it writes, in 10^9 bytes a second."""

    shape: str
    adapter: str
    copy_bytes: int
    copy_gbs: float
    matmuls: tuple[MatmulSpeed, ...]

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """A table for people, its first row the heads."""
        head = ("MATMUL", "FORMAT", "MATRIX", "MB", "US", "GB/S", "OF COPY", "US IN TURN", "GB/S IN TURN", "KERNEL")
        return (head, *(self._row(each) for each in self.matmuls))

    @property
    def legend(self) -> tuple[str, ...]:
        """What the figures are."""
        return (
            f"one-row matmuls of a {self.shape} model on {self.adapter}, by its own clock, medians of {REPEATS}",
            f"a copy of {self.copy_bytes / 1e6:,.0f} MB reads and writes {_rate(self.copy_gbs)} GB/s in all",
            "in turn: each waits for the one before, as in decoding; matrices differ, so that no cache holds them",
        )

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        matmuls = [
            asdict(each) | {"gbs": each.gbs, "in_turn_gbs": each.in_turn_gbs, "of_copy": each.gbs / self.copy_gbs}
            for each in self.matmuls
        ]
        return asdict(self) | {"matmuls": matmuls}

    def _row(self, each: MatmulSpeed) -> tuple[str, ...]:
        return (
            each.name,
            each.format,
            f"{each.rows} x {each.columns}",
            f"{each.weight_bytes / 1e6:,.1f}",
            f"{each.seconds * 1e6:,.1f}",
            _rate(each.gbs),
            f"{each.gbs / self.copy_gbs:.0%}",
            f"{each.in_turn_seconds * 1e6:,.1f}",
            _rate(each.in_turn_gbs),
            each.variant,
        )


def run(
    shape: str,
    formats: Sequence[str] = FORMAT_NAMES,
    shapes: Mapping[str, Mapping[str, Any]] = SHAPES,
    progress: Report = lambda _: None,
) -> MatmulReport:
    """Measure every matmul of a decode step of that shape in each format, on the best adapter.

    `progress` may raise Cancelled. Raises DeviceUnavailable where there is no adapter or it has no clock, DoesNotFit.
    """
    adapter, report = choose_adapter()
    device = open_device(adapter)
    try:
        caps = describe_caps(adapter, device, *probe_subgroups(device))
        if not caps.timestamps:
            raise DeviceUnavailable(f"{report.name} has no timestamps (timestamp-query): kernels cannot be timed")
        bench = _Bench(device, caps, shapes[shape])
        progress("copying")
        copy_bytes, copy_gbs = bench.copy()
        matmuls = []
        for format_name in formats:
            for name in bench.names(format_name):
                progress(f"{format_name}, {name}")
                matmuls.append(bench.matmul(format_name, name))
        return MatmulReport(shape, f"{report.name} ({report.backend})", copy_bytes, copy_gbs, tuple(matmuls))
    finally:
        device.destroy()


class _Bench:
    def __init__(self, device: Any, caps: DeviceCaps, shape: Mapping[str, Any]) -> None:
        self._device = device
        self._caps = caps
        self._shape = shape
        self._pipelines = PipelineCache(device)
        self._encoder = PassEncoder()

    def copy(self) -> tuple[int, float]:
        """Bytes of the buffer that is copied, and 10^9 bytes read and written a second."""
        caps = self._caps
        wanted = SOFTWARE_COPY_BYTES if caps.software else COPY_BYTES
        size = min(wanted, caps.max_binding, caps.max_buffer) // 16 * 16
        pool = BufferPool(self._device, caps.max_buffer)
        buffers = [pool.create("scratch", size, f"copy {index}") for index in range(2)]
        pipeline = self._pipelines.get("bench/copy.wgsl", {"SIZE": COPY_INVOCATIONS, "UNROLL": COPY_UNROLL})
        entries = [{"binding": index, "resource": {"buffer": buffer}} for index, buffer in enumerate(buffers)]
        group = self._device.create_bind_group(layout=self._pipelines.layout(pipeline), entries=entries)
        workgroups = -(-size // 16 // (COPY_INVOCATIONS * COPY_UNROLL))
        seconds = self._time([BoundDispatch(pipeline, group, grid_for(workgroups, caps))])
        pool.destroy_all()
        return size, 2 * size / seconds / 1e9

    def names(self, format_name: str) -> tuple[str, ...]:
        """The matmuls of a decode step: those of a layer, and the head."""
        return tuple(op.name for op in self._ops(format_name, 1)[1])

    def matmul(self, format_name: str, name: str) -> MatmulSpeed:
        """One of them, over enough layers, each with a matrix of its own."""
        _, (first,) = self._ops(format_name, 1, name)
        form = FORMATS[format_name]
        rows, columns = first.weights[0].rows, first.weights[0].columns
        weight_bytes = rows * sum(form.row_words(columns).values()) * 4
        count = 1 if self._caps.software or first.layer is None else -(-MATRICES_BYTES // weight_bytes)
        store, ops = self._ops(format_name, count, name)
        plan = Plan(ops, 1, "last", "f32")
        pool = BufferPool(self._device, self._caps.max_buffer)
        weights = DeviceWeights(store, pool, self._caps.max_binding)
        try:
            weights.upload(plan)
            context = KernelContext(self._caps, 1, "f32", 1, weights.placed)
            buffers = weights.buffers | dict(_tensors(ops, pool))
            seconds, variant = self._time_plan(plan, context, buffers)
            # Who writes what another has just written waits for it.
            same = buffers[tensor(ops[-1].output)]
            in_turn, _ = self._time_plan(plan, context, buffers | {tensor(op.output): same for op in ops})
        finally:
            pool.destroy_all()
        return MatmulSpeed(
            name, format_name, rows, columns, weight_bytes, count, variant, seconds / count, in_turn / count
        )

    def _ops(self, format_name: str, layers: int, name: str = "") -> tuple[RandomStore, tuple[Op, ...]]:
        """The matmuls of that name, or all, in a model with so many layers, and its weights."""
        config = random_config({**self._shape, "num_hidden_layers": layers}, "matmuls", format_name)
        store = RandomStore(config, format_name)
        plan = fuse(build(config, 1, "last"), store.formats)
        return store, tuple(op for op in plan.ops if op.kind in ("matmul", "lm_head") and name in ("", op.name))

    def _time_plan(self, plan: Plan, context: KernelContext, buffers: Mapping[Binding, Any]) -> tuple[float, str]:
        program = make_program(plan, context, buffers, self._device, self._pipelines)
        return self._time(program.dispatches), program.decisions[0].variant

    def _time(self, dispatches: Sequence[BoundDispatch]) -> float:
        """Median seconds of the dispatches, in one pass; they run once beforehand."""
        prepared = self._encoder.prepare(dispatches)
        return statistics.median(time_passes(self._device, self._encoder, [prepared] * (REPEATS + 1))[1:])


def _tensors(ops: Sequence[Op], pool: BufferPool) -> Iterator[tuple[Binding, Any]]:
    """A buffer for each activation, those that are only read filled with deviates."""
    random = np.random.default_rng(0)
    outputs = {tensor(op.output) for op in ops}
    for binding, ref in {tensor(each): each for op in ops for each in (*op.inputs, op.output)}.items():
        columns = ref.storage.columns
        buffer = pool.create("scratch", columns * 4, ref.storage.name)
        if binding not in outputs:
            pool.upload(buffer, random.standard_normal(columns, np.float32))
        yield binding, buffer


def _rate(gbs: float) -> str:
    return f"{gbs:,.0f}" if gbs >= 100 else f"{gbs:.1f}"
