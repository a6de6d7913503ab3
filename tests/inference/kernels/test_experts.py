"""The kernels of mixtures of experts against NumPy: formats, variants, odd sizes, weights in parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inference.cpu import ops as cpu
from inference.formats.planar import PlanarTensor, from_dense
from inference.gpu.weights import part_planes, plan_parts
from inference.kernels import experts
from inference.kernels.base import KernelPreference
from inference.kernels.dispatch import STATE, Binding, DeviceWeight, KernelContext, tensor
from inference.models.config import ClampedSwiglu
from inference.plan.ops import ExpertMatmul, Op, Route, TensorRef, WeightRef
from tests.inference.kernels.harness import POISON, Gpu, place_weight, run
from tests.inference.kernels.test_matmul import make_weight

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize(("num_experts", "chosen"), [(4, 2), (64, 8), (130, 7), (3, 3)])
def test_route(gpu: Gpu, num_experts: int, chosen: int, normalised: bool) -> None:
    rows, max_rows = 5, 8
    logits = np.random.default_rng(1).standard_normal((max_rows, num_experts)).astype(np.float32) * 4
    logits[1] = logits[0, 0]  # all equal
    logits[2, -1] = logits[2].max()  # two largest
    route = Route(num_experts, chosen, normalised)
    x, y = TensorRef("x", max_rows, num_experts, "f32"), TensorRef("y", max_rows, 2 * chosen, "f32")
    op = Op("route", "test", 0, (x,), y, route)
    context = KernelContext(gpu.caps, max_rows, "f32", 1, {})
    dispatches = experts.dispatches(op, experts.choose(op, context), context)
    inputs = {tensor(x): logits, STATE: np.array([0, rows], np.uint32)}
    found = run(gpu, dispatches, inputs, {tensor(y): ((max_rows, 2 * chosen), np.float32)})[tensor(y)]
    expected = cpu.route(logits[:rows], route)
    np.testing.assert_array_equal(found[:rows, :chosen], expected[:, :chosen])
    np.testing.assert_allclose(found[:rows, chosen:], expected[:, chosen:], rtol=1e-5)
    assert (found[rows:].view(np.uint32) == POISON).all()


def place_parts(
    weight: PlanarTensor, together: int, gated: bool, parts: int
) -> tuple[DeviceWeight, dict[Binding, np.ndarray]]:
    """A weight in `parts` parts or more, each of whole experts, with the arrays of its bindings."""
    row_bytes = max(plane.shape[1] * 4 for plane in weight.planes.values())
    limit = -(-weight.rows // parts) * row_bytes
    placed = plan_parts("w", weight.format, weight.rows, weight.columns, gated, limit, together)
    assert len(placed.parts) >= parts
    arrays: dict[Binding, np.ndarray] = {}
    for index, part in enumerate(placed.parts):
        planes = part_planes(weight, part, gated)
        arrays |= {binding: planes[plane] for binding, plane in zip(placed.bindings(index), placed.planes, strict=True)}
    return placed, arrays


def check(
    gpu: Gpu, ggml_type: str, attributes: ExpertMatmul, out_rows: int, columns: int, dtype: str = "f32", parts: int = 1
) -> None:
    a = attributes
    rng = np.random.default_rng(2)
    rows, max_rows = 3, 4
    numpy_dtype = {"f32": np.float32, "f16": np.float16}[dtype]
    matrices = 2 if a.activation else 1
    weight = make_weight(ggml_type, matrices * a.experts * out_rows, columns, rng)
    bias = rng.standard_normal((weight.rows, 1)).astype(np.float32)
    x = rng.standard_normal((max_rows, columns * (a.chosen if a.weighted else 1))).astype(numpy_dtype)
    logits = rng.standard_normal((max_rows, a.experts)).astype(np.float32)
    routed = cpu.route(logits, Route(a.experts, a.chosen, normalised=True))
    out_columns = out_rows if a.weighted else a.chosen * out_rows

    x_ref = TensorRef("x", max_rows, x.shape[1], dtype)  # type: ignore[arg-type]
    route_ref = TensorRef("route", max_rows, 2 * a.chosen, "f32")
    y_ref = TensorRef("y", max_rows, out_columns, dtype)  # type: ignore[arg-type]
    weight_ref, bias_ref = WeightRef(("w",), weight.rows, columns), WeightRef(("bias",), weight.rows, 1)
    placed, arrays = place_parts(weight, out_rows, a.activation is not None, parts)
    placed_bias, bias_arrays = place_weight("bias", from_dense(bias))
    refs = (weight_ref, bias_ref) if a.bias else (weight_ref,)
    op = Op("expert_matmul", "test", 0, (x_ref, route_ref), y_ref, a, refs)
    expected = cpu.expert_matmul(x[:rows].astype(np.float32), routed[:rows], [weight.dequantize(), bias], a)
    for variant in ["experts_subgroup", "experts_workgroup"] if gpu.caps.subgroup_size else ["experts_workgroup"]:
        context = KernelContext(
            gpu.caps,
            max_rows,
            "f32",
            1,
            {weight_ref: placed, bias_ref: placed_bias},
            preferences=(KernelPreference(variant, True),),
        )
        decision = experts.choose(op, context)
        assert decision.variant == variant
        inputs = {tensor(x_ref): x, tensor(route_ref): routed, STATE: np.array([0, rows], np.uint32), **arrays}
        inputs |= bias_arrays if a.bias else {}
        found = run(
            gpu,
            experts.dispatches(op, decision, context),
            inputs,
            {tensor(y_ref): ((max_rows, out_columns), numpy_dtype)},
        )[tensor(y_ref)]
        error = np.linalg.norm(found[:rows].astype(np.float32) - expected) / np.linalg.norm(expected)
        assert error < (2e-6 if dtype == "f32" else 1e-3), f"{variant}: relative error {error}"
        assert (found[rows:].view(np.uint32) == POISON).all()


PLAIN = ExpertMatmul(5, 2)
GATED = replace(PLAIN, activation="silu")
CLAMPED = replace(PLAIN, activation=ClampedSwiglu(1.702, 5.0))
WEIGHTED = replace(PLAIN, weighted=True)


@pytest.mark.parametrize("attributes", [GATED, WEIGHTED], ids=["gated", "weighted"])
@pytest.mark.parametrize("ggml_type", ["BF16", "Q4_1", "MXFP4", "Q6_K"])
def test_formats(gpu: Gpu, ggml_type: str, attributes: ExpertMatmul) -> None:
    check(gpu, ggml_type, attributes, out_rows=37, columns=512 if ggml_type == "Q6_K" else 96)


@pytest.mark.parametrize("attributes", [PLAIN, CLAMPED, WEIGHTED], ids=["plain", "clamped", "weighted"])
def test_biases(gpu: Gpu, attributes: ExpertMatmul) -> None:
    check(gpu, "F32", replace(attributes, bias=True), out_rows=9, columns=40)


@pytest.mark.parametrize("attributes", [PLAIN, GATED, WEIGHTED], ids=["plain", "gated", "weighted"])
def test_weights_in_parts(gpu: Gpu, attributes: ExpertMatmul) -> None:
    check(gpu, "Q8_0", replace(attributes, bias=True), out_rows=20, columns=64, parts=3)


@pytest.mark.parametrize("attributes", [GATED, WEIGHTED], ids=["gated", "weighted"])
def test_f16_activations(gpu: Gpu, attributes: ExpertMatmul) -> None:
    if not gpu.caps.f16:
        pytest.skip("the adapter has no f16")
    check(gpu, "Q4_0", attributes, out_rows=34, columns=64, dtype="f16")
