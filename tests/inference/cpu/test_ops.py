"""Each NumPy operation against a plain form in float64, with loops over tokens, heads and elements."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inference.cpu import ops as cpu
from inference.models.config import ClampedSwiglu, RopeConfig
from inference.plan.ops import Attention
from inference.rope import rope_table

TOLERANCE = 2e-6


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype(np.float32)


@pytest.mark.parametrize(("rows", "columns", "group"), [(1, 64, 64), (3, 96, 96), (5, 96, 24), (2, 7, 1)])
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_rmsnorm(rng: np.random.Generator, rows: int, columns: int, group: int, eps: float) -> None:
    x, weight = normal(rng, rows, columns, scale=0.05), normal(rng, group)
    expected = np.zeros((rows, columns))
    for row in range(rows):
        for first in range(0, columns, group):
            values = [float(value) for value in x[row, first : first + group]]
            root = math.sqrt(sum(value * value for value in values) / group + eps)
            for index, value in enumerate(values):
                expected[row, first + index] = value / root * float(weight[index])
    found = cpu.rmsnorm(x, weight, eps)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_silu() -> None:
    x = np.array([[-200.0, -90.0, -20.0, -1.0, -0.0, 0.0, 1e-3, 1.0, 20.0, 200.0]], np.float32)
    expected = [value / (1 + math.exp(-value)) for value in map(float, x[0])]
    with np.errstate(all="raise", under="ignore"):
        found = cpu.activate(x, "silu")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0], expected, rtol=TOLERANCE, atol=1e-30)


def test_gelu_tanh() -> None:
    x = np.array([[-200.0, -5.0, -1.0, -0.1, 0.0, 0.1, 1.0, 5.0, 200.0]], np.float32)
    expected = [
        0.5 * value * (1 + math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))
        for value in map(float, x[0])
    ]
    found = cpu.activate(x, "gelu_tanh")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0], expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_softcap(rng: np.random.Generator) -> None:
    x = normal(rng, 3, 5, scale=100.0)
    expected = [[30 * math.tanh(float(value) / 30) for value in row] for row in x]
    found = cpu.softcap(x, 30.0)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(16, 16), (24, 24), (16, 8)])
def test_rotate(rng: np.random.Generator, interleaved: bool, head_dim: int, rotary_dim: int) -> None:
    rows, heads, first_position = 4, 3, 1000
    rope = RopeConfig(10_000.0, rotary_dim, interleaved, position_scale=0.5)
    x = normal(rng, rows, heads * head_dim)
    expected = x.astype(np.float64)
    for row in range(rows):
        for head in range(heads):
            for pair in range(rotary_dim // 2):
                angle = (first_position + row) * 0.5 * 10_000.0 ** (-2 * pair / rotary_dim)
                first = head * head_dim + (2 * pair if interleaved else pair)
                second = first + (1 if interleaved else rotary_dim // 2)
                a, b = float(x[row, first]), float(x[row, second])
                expected[row, first] = a * math.cos(angle) - b * math.sin(angle)
                expected[row, second] = a * math.sin(angle) + b * math.cos(angle)
    found = cpu.rotate(x, rope_table(rope, first_position, rows), head_dim, interleaved)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_clamped_swiglu() -> None:
    gate = np.array([[-200.0, -20.0, -1.0, 0.0, 0.5, 2.0, 7.5, 200.0]], np.float32)
    up = np.array([[1.0, -9.0, 2.0, 3.0, -1.0, 9.0, 0.25, -300.0]], np.float32)
    expected = []
    for one, other in zip(gate[0].tolist(), up[0].tolist(), strict=True):
        one, other = min(one, 7.0), min(max(other, -7.0), 7.0)
        expected.append((other + 1) * one / (1 + math.exp(-1.702 * one)))
    with np.errstate(all="raise", under="ignore"):
        found = cpu.gate(gate, up, ClampedSwiglu(1.702, 7.0))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0], expected, rtol=TOLERANCE, atol=1e-12)


def plain_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, first: int, a: Attention, sinks: np.ndarray | None = None
) -> np.ndarray:
    """q (T, H*E), k and v (K, S, E), one number after another."""
    result = np.zeros(q.shape)
    for row in range(q.shape[0]):
        position = first + row
        for head in range(a.num_heads):
            columns = slice(head * a.head_dim, (head + 1) * a.head_dim)
            kv_head = head // (a.num_heads // a.num_kv_heads)
            seen = [
                key for key in range(k.shape[1]) if key <= position and (a.window is None or key > position - a.window)
            ]
            scores = []
            for key in seen:
                score = a.scale * float(np.dot(q[row, columns].astype(np.float64), k[kv_head, key].astype(np.float64)))
                scores.append(a.softcap * math.tanh(score / a.softcap) if a.softcap is not None else score)
            weights = [math.exp(score - max(scores)) for score in scores]
            total = sum(weights) + (0 if sinks is None else math.exp(sinks[head] - max(scores)))
            for weight, key in zip(weights, seen, strict=True):
                result[row, columns] += weight / total * v[kv_head, key].astype(np.float64)
    return result


@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (4, 1)])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize(("rows", "first"), [(1, 0), (1, 9), (5, 0), (4, 7)])
def test_attention(
    rng: np.random.Generator, heads: tuple[int, int], window: int | None, softcap: float | None, rows: int, first: int
) -> None:
    num_heads, num_kv_heads = heads
    head_dim = 24
    a = Attention(num_heads, num_kv_heads, head_dim, 0.3, window, softcap)
    q = normal(rng, rows, num_heads * head_dim)
    k, v = normal(rng, num_kv_heads, first + rows, head_dim), normal(rng, num_kv_heads, first + rows, head_dim)
    found = cpu.attention(q, k, v, first, a)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, plain_attention(q, k, v, first, a), atol=TOLERANCE)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("rows", "first"), [(1, 9), (5, 0)])
def test_attention_sinks(rng: np.random.Generator, window: int | None, rows: int, first: int) -> None:
    a = Attention(4, 2, 24, 0.3, window, None, sinks=True)
    sinks = np.array([-50.0, 0.5, 3.0, 90.0], np.float32)
    q, k, v = normal(rng, rows, 96), normal(rng, 2, first + rows, 24), normal(rng, 2, first + rows, 24)
    found = cpu.attention(q, k, v, first, a, sinks=sinks)
    np.testing.assert_allclose(found, plain_attention(q, k, v, first, a, sinks), atol=TOLERANCE)
    # The first head's sink takes nothing, the last one's nearly all.
    without = plain_attention(q, k, v, first, a)
    np.testing.assert_allclose(found[:, :24], without[:, :24], atol=TOLERANCE)
    assert np.abs(found[:, 72:]).max() < 1e-6


def test_attention_of_one_very_large_score() -> None:
    a = Attention(1, 1, 2, 1.0, None, None)
    k = np.array([[[1e4, 0.0], [0.0, 1.0]]], np.float32)
    v = np.array([[[1.0, 2.0], [3.0, 4.0]]], np.float32)
    found = cpu.attention(np.array([[1e4, 0.0]], np.float32), k, v, 1, a)
    assert found.tolist() == [[1.0, 2.0]]
