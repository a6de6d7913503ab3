"""The operations whose rows do not depend on one another: any part of the rows can be computed by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from inference.cpu import ops as cpu
from inference.plan.ops import (
    ActivationGate,
    Add,
    ExpertMatmul,
    Lora,
    Matmul,
    Op,
    RmsNorm,
    Route,
    Softcap,
)

Product = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""x (T, K), W (N, K) -> x @ W.T."""


def compute(op: Op, inputs: Sequence[np.ndarray], weights: Sequence[np.ndarray], product: Product) -> np.ndarray:
    """The output of `op` for the rows of its `inputs`, float32. `product` is for matmuls."""
    match op.attributes:
        case Matmul() as matmul:
            return _matmul(matmul, inputs, weights, product)
        case RmsNorm(eps, _, residual):
            normed = cpu.rmsnorm(inputs[0], weights[0][0], eps)
            return normed + inputs[1] if residual else normed
        case ActivationGate(activation):
            return cpu.gate(inputs[0], inputs[1], activation)
        case Add(scale):
            return inputs[0] * np.float32(scale) + inputs[1]
        case Lora():
            x, y = inputs
            return y + x @ weights[0].T @ weights[1].T
        case Route() as route:
            return cpu.route(inputs[0], route)
        case ExpertMatmul() as experts:
            return cpu.expert_matmul(inputs[0], inputs[1], weights, experts)
        case Softcap(cap):
            return cpu.softcap(inputs[0], cap)
        case other:
            raise AssertionError(f"the rows of {other} depend on the step")


def _matmul(
    matmul: Matmul, inputs: Sequence[np.ndarray], weights: Sequence[np.ndarray], product: Product
) -> np.ndarray:
    x = inputs[0]
    if matmul.norm_eps is not None:
        x = cpu.rmsnorm(x, weights[-1][0], matmul.norm_eps)
    y = product(x, weights[0])  # (T, rows of W)
    if matmul.bias:
        y += weights[1][:, 0]
    if matmul.lora:
        y += inputs[1] @ weights[2 if matmul.bias else 1].T
    if matmul.activation is not None:
        half = y.shape[1] // 2
        y = cpu.gate(y[:, :half], y[:, half:], matmul.activation)
    if matmul.scale != 1:
        y *= np.float32(matmul.scale)
    if matmul.residual:
        y += inputs[-1]
    return y
