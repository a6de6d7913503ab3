"""Time matmul kernels divided in many ways, on matrices of real models' shapes, and check each against NumPy.

python tools/explore_matmul.py --seconds 90 --json found.json

What `inference/kernels/matmul_shapes.py` chooses by comes from its table: for each matmul the fastest divisions, with
microseconds a matmul in turn (each waits for the one before, as in decoding), then what they read or compute a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from matmul_candidates import MODELS, Job, Shape, code, jobs

from inference.cpu import ops as cpu
from inference.formats.planar import FORMATS, PlanarFormat, PlanarTensor
from inference.gpu.buffers import BufferPool
from inference.gpu.device import DeviceCaps, choose_adapter, describe_caps, open_device
from inference.gpu.encoder import BoundDispatch, PassEncoder
from inference.gpu.pipelines import PipelineCache
from inference.gpu.probes import probe_subgroups
from inference.gpu.timing import time_passes
from inference.kernels import matmul
from inference.kernels.dispatch import STATE, Binding, DeviceWeight, Dispatch, KernelContext, WeightPart, tensor
from inference.kernels.matmul_shapes import MatmulRequest, Tile, tile_for
from inference.plan.build import build
from inference.plan.fuse import fuse
from inference.plan.ops import Matmul, Op
from inference.random_model import PIECE, RandomStore, random_config, scale_words

MATRICES_BYTES = 256 * 2**20
CODES_BYTES, SCALES_BYTES = 640 * 2**20, 160 * 2**20
MOST_MATRICES = 120
CHECKED_ROWS = 24


@dataclass(frozen=True)
class Found:
    """Seconds for one matmul: in turn, and where none waits for another. `error` is relative, by NumPy."""

    shape: Shape
    in_turn_seconds: float
    seconds: float
    error: float


def main() -> None:
    parser = argparse.ArgumentParser(description="Time matmul kernels divided in many ways.")
    parser.add_argument("--seconds", type=float, default=90.0, help="stop after so many (default: 90)")
    parser.add_argument("--json", help="write everything measured to this file")
    parser.add_argument("--threads", type=int, default=12, help="that compile (default: 12)")
    parser.add_argument("--only", default="", help="jobs whose name contains this, such as 'smollm2 q4_1'")
    given = parser.parse_args()
    deadline = time.perf_counter() + given.seconds
    adapter, report = choose_adapter()
    device = open_device(adapter)
    caps = describe_caps(adapter, device, *probe_subgroups(device))
    print(f"{report.name} ({report.backend}), subgroups of {caps.subgroup_size}", flush=True)
    bench = _Bench(device, caps)
    chosen = [job for job in jobs() if given.only in f"{job.model} {job.format} {job.name} {job.rows}"]
    everything: list[dict[str, Any]] = []
    with ThreadPoolExecutor(given.threads) as threads:
        prepared = [bench.prepare(job, threads, deadline) for job in chosen]
        for job, (op, context, pipelines) in zip(chosen, prepared, strict=True):
            if time.perf_counter() > deadline:
                print(f"no time left for {job.model} {job.format} {job.name} and what follows")
                break
            found = bench.measure(job, op, context, pipelines, deadline)
            print(line(job, op, found), flush=True)
            for each in found:
                everything.append(
                    {
                        "model": job.model, "format": job.format, "name": job.name, "rows": job.rows,
                        "code": code(each.shape), **asdict(each),
                    }
                )  # fmt: skip
            if given.json:
                with open(given.json, "w", encoding="utf-8") as file:
                    json.dump(everything, file)
        for _, _, pipelines in prepared:
            for future in pipelines.values():
                future.cancel()


def line(job: Job, op: Op, found: Sequence[Found]) -> str:
    """What the engine chooses, the fastest in turn, and which were wrong."""
    ref = op.weights[0]
    nbytes = ref.rows * sum(FORMATS[job.format].row_words(ref.columns).values()) * 4
    operations = 2 * ref.rows * ref.columns * job.rows

    def tell(each: Found) -> str:
        if job.rows == 1:
            rate = f"{nbytes / each.in_turn_seconds / 1e9:.0f}/{nbytes / each.seconds / 1e9:.0f}"
        else:
            rate = f"{operations / each.in_turn_seconds / 1e12:.1f}T"
        return f"{code(each.shape)} {each.in_turn_seconds * 1e6:.1f} {rate}"

    good = sorted((each for each in found if each.error < 1e-4), key=lambda each: each.in_turn_seconds)
    wrong = [code(each.shape) for each in found if not each.error < 1e-4]
    worst = max((each.error for each in good), default=0.0)
    head = f"{job.model} {job.format} {job.name.rpartition('.')[2]} {ref.rows}x{ref.columns} r{job.rows}"
    best = " | ".join(tell(each) for each in good[:5])
    free = min(good, key=lambda each: each.seconds, default=None)
    tail = f" | free: {tell(free)}" if free is not None and free not in good[:5] else ""
    wrongs = f" | WRONG {wrong}" if wrong else ""
    first = tell(found[0]) if found else "nothing ran"
    return f"{head} [{len(found)}, {worst:.0e}] chosen {first} || {best}{tail}{wrongs}"


class _Bench:
    def __init__(self, device: Any, caps: DeviceCaps) -> None:
        self._device = device
        self._caps = caps
        self._pipelines = PipelineCache(device)
        self._encoder = PassEncoder()
        self._pool = BufferPool(device, caps.max_buffer)
        self._random = np.random.default_rng(0)
        small = caps.software
        self._codes_bytes = min(48 * 2**20 if small else CODES_BYTES, caps.max_binding, caps.max_buffer)
        self._scales_bytes = min(16 * 2**20 if small else SCALES_BYTES, caps.max_binding, caps.max_buffer)
        self._words = self._random.integers(0, 2**32, PIECE, np.uint32)
        halves = (self._random.standard_normal(2 * PIECE, np.float32) / 64).astype(np.float16)
        self._halves = halves.view(np.uint32)
        self._codes = self._filled(self._words)
        self._floats: Any = None
        self._scales = self._pool.create("weights", self._scales_bytes, "scales")
        self._supers = self._pool.create("weights", self._scales_bytes // 4, "supers")
        self._scaled_for = ""

    def prepare(
        self, job: Job, threads: ThreadPoolExecutor, deadline: float
    ) -> tuple[Op, KernelContext, dict[Shape, Future[Any]]]:
        """The op, and the pipelines of all divisions under way."""
        op = _op(job)
        ref = op.weights[0]
        weights = {
            each: DeviceWeight(each.name, FORMATS["f32"], each.columns, (WeightPart(0, each.rows),))
            for each in op.weights[1:]
        }
        weights[ref] = DeviceWeight("w", FORMATS[job.format], ref.columns, (WeightPart(0, ref.rows),))
        context = KernelContext(self._caps, job.rows, "f32", 256, weights)

        def compile_one(dispatch: Dispatch) -> Any:
            if time.perf_counter() > deadline:
                return None
            try:
                return self._pipelines.get(dispatch.shader, dispatch.constants)
            except RuntimeError as error:
                print(f"not compiled: {str(error)[:300]}", flush=True)
                return None

        return (
            op,
            context,
            {
                shape: threads.submit(compile_one, _dispatch(op, context, shape))
                for shape in dict.fromkeys((_chosen(op, context), *job.shapes))
                if self._fits(op, job, shape)
            },
        )

    def measure(
        self, job: Job, op: Op, context: KernelContext, pipelines: Mapping[Shape, Future[Any]], deadline: float
    ) -> list[Found]:
        """All divisions that fit the device."""
        form, ref = FORMATS[job.format], op.weights[0]
        words = form.row_words(ref.columns)
        sizes = {plane: -(-ref.rows * each * 4 // 256) * 256 for plane, each in words.items()}
        codes_bytes = sizes["low"] + sizes.get("high", 0)
        wanted = 1 if self._caps.software else max(2, -(-MATRICES_BYTES // sum(sizes.values())))
        count = max(1, min(wanted, MOST_MATRICES, self._codes_bytes // codes_bytes))
        if job.rows > 1 and not self._caps.software:
            count = min(count, 30 if job.model == "smollm2" else 2)
        self._scale_for(job.format)
        buffers = self._tensors(op, count, job.rows)
        expected_rows = np.unique(np.linspace(0, _out_rows(op) - 1, CHECKED_ROWS).astype(int))
        expected = self._expected(op, form, expected_rows, sizes, count, buffers)
        y_ref = op.output
        found, prepared = [], []
        for shape, future in pipelines.items():
            pipeline = future.result()
            if pipeline is None:
                continue
            dispatch = _dispatch(op, context, shape)
            sets = []
            for outputs in (buffers["outputs"][:1] * count, buffers["outputs"]):
                bound = []
                for index in range(count):
                    entries = []
                    for number, binding in enumerate(dispatch.bindings):
                        resource = self._resource(binding, index, sizes, count, form, buffers, outputs[index], y_ref)
                        entries.append({"binding": number, "resource": resource})
                    group = self._device.create_bind_group(layout=self._pipelines.layout(pipeline), entries=entries)
                    bound.append(BoundDispatch(pipeline, group, dispatch.grid))
                sets.append((bound, self._encoder.prepare(bound)))
            single = self._encoder.prepare(sets[0][0][:1])
            self._pool.upload(buffers["outputs"][0], np.full(4, np.nan, np.float32))
            time_passes(self._device, self._encoder, [single])
            y = np.frombuffer(self._device.queue.read_buffer(buffers["outputs"][0]), np.float32)
            y = y[: job.rows * y_ref.columns].reshape(job.rows, -1)[:, expected_rows]
            error = float(np.linalg.norm(y - expected) / np.linalg.norm(expected))
            prepared.append((shape, error, sets))
        repeats = 1 if self._caps.software else 4 if job.rows < 256 else 2
        # All once for the clocks, then in turn.
        times: dict[Shape, list[list[float]]] = {shape: [] for shape, _, _ in prepared}
        for _ in range(1 if self._caps.software else 2):
            for shape, _, sets in prepared:
                seconds = time_passes(
                    self._device, self._encoder, [sets[0][1]] * (repeats + 1) + [sets[1][1]] * repeats
                )
                times[shape].append(
                    [statistics.median(seconds[1 : repeats + 1]), statistics.median(seconds[repeats + 1 :])]
                )
            if time.perf_counter() > deadline:
                break
        for shape, error, _ in prepared:
            in_turn, free = (min(each[which] for each in times[shape]) / count for which in (0, 1))
            found.append(Found(shape, in_turn, free, error))
        for buffer in buffers["all"]:
            self._pool.destroy(buffer)
        return found

    def _fits(self, op: Op, job: Job, shape: Shape) -> bool:
        caps = self._caps
        if isinstance(shape, Tile):
            gated, norm = _attributes(op).activation is not None, _attributes(op).norm_eps is not None
            invocations = shape.rows // shape.thread_rows * shape.columns // shape.thread_columns
            return shape.storage(gated, norm) <= caps.max_workgroup_storage and invocations <= caps.max_invocations
        if shape.lanes > max(caps.subgroup_size, 1) or op.weights[0].columns % shape.unit:
            return False
        request = _request(op, FORMATS[job.format], caps)
        return shape.storage(request) <= caps.max_workgroup_storage

    def _filled(self, piece: np.ndarray) -> Any:
        """A buffer that repeats the piece."""
        buffer = self._pool.create("weights", self._codes_bytes, "codes")
        source = self._pool.create("weights", piece.nbytes, "piece")
        self._pool.upload(source, piece)
        commands = self._device.create_command_encoder()
        for start in range(0, self._codes_bytes, piece.nbytes):
            size = min(piece.nbytes, self._codes_bytes - start)
            commands.copy_buffer_to_buffer(source, 0, buffer, start, size)
        self._device.queue.submit([commands.finish()])
        return buffer

    def _scale_for(self, format_name: str) -> None:
        if self._scaled_for == format_name:
            return
        self._scaled_for = format_name
        form = FORMATS[format_name]
        if form.dense:
            self._floats = self._floats or self._filled(self._halves)
            return
        constant = scale_words(form, 4096)
        for plane, buffer in (("scales", self._scales), ("supers", self._supers)):
            if plane in constant:
                self._pool.upload(buffer, np.full(buffer.size // 4, constant[plane], np.uint32))

    def _tensors(self, op: Op, count: int, rows: int) -> dict[str, Any]:
        attributes = _attributes(op)
        made: list[Any] = []

        def create(array: np.ndarray) -> Any:
            buffer = self._pool.create("scratch", array.nbytes, "tensor")
            self._pool.upload(buffer, array)
            made.append(buffer)
            return buffer

        arrays = {"x": self._random.standard_normal((rows, op.inputs[0].columns), np.float32)}
        bound = {tensor(op.inputs[0]): create(arrays["x"])}
        if attributes.residual:
            arrays["residual"] = self._random.standard_normal((rows, op.output.columns), np.float32)
            bound[tensor(op.inputs[1])] = create(arrays["residual"])
        if attributes.norm_eps is not None:
            arrays["norm"] = self._random.uniform(0.5, 1.5, op.weights[0].columns).astype(np.float32)
            bound[Binding("weight", f"{op.weights[-1].name}/0/low")] = create(arrays["norm"])
        bound[STATE] = create(np.array([0, rows, 0, 0], np.uint32))
        zeros = np.zeros(rows * op.output.columns, np.float32)
        outputs = [create(zeros) for _ in range(count)]
        return {"bound": bound, "arrays": arrays, "outputs": outputs, "all": made}

    def _resource(
        self,
        binding: Binding,
        index: int,
        sizes: Mapping[str, int],
        count: int,
        form: PlanarFormat,
        buffers: Mapping[str, Any],
        output: Any,
        y_ref: Any,
    ) -> dict[str, Any]:
        if binding == tensor(y_ref):
            return {"buffer": output}
        if binding in buffers["bound"]:
            return {"buffer": buffers["bound"][binding]}
        plane = binding.name.rpartition("/")[2]
        buffer = {"scales": self._scales, "supers": self._supers}.get(
            plane, self._floats if form.dense else self._codes
        )
        room = buffer.size - sizes[plane]
        offset = min(index * sizes[plane], room) if plane != "high" else count * sizes["low"] + index * sizes["high"]
        return {"buffer": buffer, "offset": offset // 256 * 256, "size": sizes[plane]}

    def _expected(
        self, op: Op, form: PlanarFormat, rows: np.ndarray, sizes: Mapping[str, int], count: int, buffers: Any
    ) -> np.ndarray:
        """The outputs `rows` of the first matrix by NumPy."""
        arrays, attributes, ref = buffers["arrays"], _attributes(op), op.weights[0]
        columns = ref.columns
        x = arrays["x"]
        if attributes.norm_eps is not None:
            x = cpu.rmsnorm(x, arrays["norm"], attributes.norm_eps)

        def product(weight_rows: np.ndarray) -> np.ndarray:
            planes = {}
            constant = {} if form.dense else scale_words(form, 4096)
            for plane, words in form.row_words(columns).items():
                if plane in constant:
                    planes[plane] = np.full((len(weight_rows), words), constant[plane], np.uint32)
                    continue
                base = count * sizes["low"] // 4 if plane == "high" else 0
                at = base + weight_rows[:, None].astype(np.int64) * words + np.arange(words)
                planes[plane] = (self._halves if form.dense else self._words)[at % PIECE]
            return x @ PlanarTensor(form, len(weight_rows), columns, planes).dequantize().T

        y = product(rows)
        if attributes.activation is not None:
            y = cpu.gate(y, product(rows + _out_rows(op)), attributes.activation)
        y = attributes.scale * y
        return y + arrays["residual"][:, rows] if attributes.residual else y


def _chosen(op: Op, context: KernelContext) -> Shape:
    """How the engine divides it."""
    decision = matmul.choose(op, context)
    if decision.variant != "tiled":
        return matmul.part_shape(op, decision, context, 0)
    tile = tile_for(_request(op, context.weights[op.weights[0]].format, context.caps))
    assert tile is not None
    return tile


def _request(op: Op, form: PlanarFormat, caps: DeviceCaps) -> MatmulRequest:
    gated, norm = _attributes(op).activation is not None, _attributes(op).norm_eps is not None
    return MatmulRequest(op.output.rows, op.weights[0].columns, op.output.columns, gated, norm, form, caps)


def _dispatch(op: Op, context: KernelContext, shape: Shape) -> Dispatch:
    if isinstance(shape, Tile):
        return matmul.tiled_dispatch(op, context, 0, shape)
    return matmul.gemv_dispatch(op, context, 0, shape, subgroup=True)


def _attributes(op: Op) -> Matmul:
    assert isinstance(op.attributes, Matmul)
    return op.attributes


def _out_rows(op: Op) -> int:
    return op.output.columns


def _op(job: Job) -> Op:
    config = random_config({**MODELS[job.model], "num_hidden_layers": 1}, "matmuls", job.format)
    plan = fuse(build(config, job.rows, "all"), RandomStore(config, job.format).formats)
    return next(op for op in plan.ops if op.name == job.name)


if __name__ == "__main__":
    main()
