"""The choice of experts and the matmul through them, against plain forms in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inference.cpu import ops as cpu
from inference.plan.ops import ExpertMatmul, Route


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize(("experts", "chosen"), [(5, 2), (8, 8), (1, 1), (130, 7)])
def test_route(rng: np.random.Generator, experts: int, chosen: int, normalised: bool) -> None:
    logits = 3 * normal(rng, 4, experts)
    found = cpu.route(logits, Route(experts, chosen, normalised))
    assert found.dtype == np.float32 and found.shape == (4, 2 * chosen)
    for row in range(4):
        values = [float(value) for value in logits[row]]
        ids = sorted(range(experts), key=lambda expert: -values[expert])[:chosen]
        assert found[row, :chosen].tolist() == ids
        total = sum(math.exp(values[expert]) for expert in (ids if normalised else range(experts)))
        shares = [math.exp(values[expert]) / total for expert in ids]
        np.testing.assert_allclose(found[row, chosen:], shares, rtol=2e-6)


def test_of_equal_logits_the_first_are_chosen() -> None:
    logits = np.array([[0, 2, 1, 2, 2], [1, 1, 1, 1, 1]], np.float32)
    found = cpu.route(logits, Route(5, 2, normalised=True))
    assert found.tolist() == [[1, 3, 0.5, 0.5], [0, 1, 0.5, 0.5]]


def test_large_logits_do_not_overflow() -> None:
    found = cpu.route(np.array([[1000, -1000, 999]], np.float32), Route(3, 1, normalised=False))
    np.testing.assert_allclose(found, [[0, 1 / (1 + math.exp(-1))]], rtol=1e-6)


def plain_experts(
    x: np.ndarray, routed: np.ndarray, matrices: list[np.ndarray], biases: list[np.ndarray], a: ExpertMatmul
) -> np.ndarray:
    """`matrices` (experts, rows, columns): one, or gate and up; `biases` (experts, rows) alike, or none."""
    results = []
    for row, choices in zip(x.astype(np.float64), routed, strict=True):
        made = []
        for choice in range(a.chosen):
            expert = int(choices[choice])
            read = np.split(row, a.chosen)[choice] if a.weighted else row
            products = [matrix[expert].astype(np.float64) @ read for matrix in matrices]
            for product, bias in zip(products, biases, strict=False):
                product += bias[expert]
            if a.activation == "silu":
                products = [products[0] / (1 + np.exp(-products[0])) * products[1]]
            made.append(products[0] * (choices[a.chosen + choice] if a.weighted else 1))
        results.append(np.sum(made, axis=0) if a.weighted else np.concatenate(made))
    return np.array(results)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "attributes",
    [
        ExpertMatmul(5, 2),
        ExpertMatmul(5, 3, weighted=True),
        ExpertMatmul(5, 2, activation="silu"),
        ExpertMatmul(1, 1),
    ],
)
@pytest.mark.parametrize("rows", [1, 6])
def test_expert_matmul(rng: np.random.Generator, attributes: ExpertMatmul, bias: bool, rows: int) -> None:
    a = attributes
    out_rows, columns = 7, 12
    matrices = [normal(rng, a.experts, out_rows, columns) for _ in range(2 if a.activation else 1)]
    biases = [normal(rng, a.experts, out_rows) for _ in matrices] if bias else []
    weights = [np.concatenate(matrices).reshape(-1, columns)]
    weights += [np.concatenate(biases).reshape(-1, 1)] if bias else []
    x = normal(rng, rows, columns * (a.chosen if a.weighted else 1))
    routed = cpu.route(normal(rng, rows, a.experts), Route(a.experts, a.chosen, normalised=False))
    a = ExpertMatmul(a.experts, a.chosen, a.weighted, bias, a.activation)
    found = cpu.expert_matmul(x, routed, weights, a)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, plain_experts(x, routed, matrices, biases, a), atol=5e-6)
