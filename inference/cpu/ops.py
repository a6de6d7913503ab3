"""Each operation in NumPy, f32: the reference for every WebGPU kernel. No Python loop over tokens or heads.

Dimension letters: T rows, D hidden_size, H num_heads, K num_kv_heads, G = H / K, E head_dim, S kv_len.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from inference.models.config import Activation, ClampedSwiglu
from inference.plan.ops import Attention, ExpertMatmul, Route


def rmsnorm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """RMS norm over groups of len(weight) columns of x (T, columns); arXiv:1910.07467."""
    groups = x.reshape(-1, weight.size)  # (T * groups, group)
    mean = np.vecdot(groups, groups)[:, None] / np.float32(weight.size)
    normed = groups / np.sqrt(mean + np.float32(eps))
    normed *= weight
    return normed.reshape(x.shape)


def gate(gate: np.ndarray, up: np.ndarray, activation: Activation) -> np.ndarray:
    """What a feed-forward part makes of its two projections (GLU variants: arXiv:2002.05202), elementwise."""
    if isinstance(activation, ClampedSwiglu):
        gate, up = np.minimum(gate, activation.limit), np.clip(up, -activation.limit, activation.limit)
        return activate(np.float32(activation.alpha) * gate, "silu") / np.float32(activation.alpha) * (up + 1)
    activated = activate(gate, activation)
    activated *= up
    return activated


def activate(x: np.ndarray, activation: Literal["silu", "gelu_tanh"]) -> np.ndarray:
    """SiLU or tanh-form GELU (arXiv:1606.08415), elementwise."""
    if activation == "silu":
        # exp overflows to inf for large negative x; x / inf is the 0 that SiLU tends to.
        with np.errstate(over="ignore"):
            scale = np.exp(-x)
        scale += 1
        return np.divide(x, scale, out=scale)
    inner = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1.0 + np.tanh(inner))


def rotate(x: np.ndarray, table: np.ndarray, head_dim: int, interleaved: bool) -> np.ndarray:
    """Rotary embedding of x (T, heads * E) by `table` (T, rotary_dim / 2, 2) of cos and sin."""
    heads = x.reshape(x.shape[0], -1, head_dim)  # (T, heads, E)
    half = table.shape[1]
    cos, sin = table[:, None, :, 0], table[:, None, :, 1]  # (T, 1, rotary_dim / 2)
    if interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    x1, x2 = heads[..., first], heads[..., second]
    result = heads.copy()
    np.subtract(x1 * cos, x2 * sin, out=result[..., first])
    np.add(x2 * cos, x1 * sin, out=result[..., second])
    return result.reshape(x.shape)


def softcap(x: np.ndarray, cap: float) -> np.ndarray:
    """cap * tanh(x / cap), Gemma 2 (arXiv:2408.00118)."""
    return np.float32(cap) * np.tanh(x / np.float32(cap))


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    first_position: int,
    attributes: Attention,
    first_key: int = 0,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """Causal attention of q (T, H*E), whose rows stand at first_position onwards, over k and v (K, S, E).

    Key s stands at position first_key + s; `sinks` (H,) joins the softmax of each head. Returns (T, H*E).
    """
    rows, num_keys = q.shape[0], k.shape[1]
    a = attributes
    groups = a.num_heads // a.num_kv_heads
    # (T, H*E) -> (K, T*G, E): the query heads of one KV head are rows of one product.
    by_kv_head = q.reshape(rows, a.num_kv_heads, groups, a.head_dim).transpose(1, 0, 2, 3)
    queries = by_kv_head.reshape(a.num_kv_heads, rows * groups, a.head_dim) * np.float32(a.scale)
    scores = queries @ k.transpose(0, 2, 1)  # (K, T*G, S)
    if a.softcap is not None:
        scores = softcap(scores, a.softcap)
    by_head = scores.reshape(a.num_kv_heads, rows, groups, num_keys)
    # Every row sees the keys between where the last row's window begins and the first row.
    from_window = 0 if a.window is None else max(0, first_position + rows - a.window - first_key)
    seen_by_all = slice(from_window, max(from_window, first_position + 1 - first_key))
    for keys in (slice(0, seen_by_all.start), slice(seen_by_all.stop, num_keys)):
        if keys.start < keys.stop:
            _hide(by_head[..., keys], first_position, first_key + keys.start, a.window)
    largest = by_head.max(axis=-1, keepdims=True)  # (K, T, G, 1)
    if sinks is not None:
        by_group = sinks.reshape(a.num_kv_heads, 1, groups, 1)
        largest = np.maximum(largest, by_group)
    by_head -= largest
    np.exp(by_head, out=by_head)
    total = by_head.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total += np.exp(by_group - largest)
    mixed = (scores @ v).reshape(a.num_kv_heads, rows, groups, a.head_dim)
    mixed /= total
    return mixed.transpose(1, 0, 2, 3).reshape(rows, a.num_heads * a.head_dim)


def _hide(scores: np.ndarray, first_position: int, first_key: int, window: int | None) -> None:
    """Set scores (K, T, G, S) to -inf where a row does not see a key; both stand at these positions and after them."""
    position = first_position + np.arange(scores.shape[1])[:, None]  # (T, 1)
    key = first_key + np.arange(scores.shape[3])  # (S,)
    hidden = key > position
    if window is not None:
        hidden |= position - key >= window
    np.copyto(scores, np.float32(-np.inf), where=hidden[None, :, None, :])


def route(logits: np.ndarray, attributes: Route) -> np.ndarray:
    """The experts of each row of logits (T, experts), and their shares: (T, 2 * chosen)."""
    ids = np.argsort(-logits, axis=1, kind="stable")[:, : attributes.chosen]
    chosen = np.take_along_axis(logits, ids, axis=1)
    largest = chosen[:, :1]
    total = np.exp((chosen if attributes.normalised else logits) - largest).sum(axis=1, keepdims=True)
    return np.concatenate([ids.astype(np.float32), np.exp(chosen - largest) / total], axis=1)


def expert_matmul(
    x: np.ndarray, routed: np.ndarray, weights: Sequence[np.ndarray], attributes: ExpertMatmul
) -> np.ndarray:
    """Each row of x through the experts that `routed` (the result of `route`) names; shapes as ExpertMatmul says."""
    a = attributes
    rows = x.shape[0]
    ids, shares = routed[:, : a.chosen].astype(np.int64), routed[:, a.chosen :]
    # By matrix (1, or gate and up), expert, row and column.
    stacked = weights[0].reshape(2 if a.activation else 1, a.experts, -1, weights[0].shape[1])
    by_choice = x.reshape(rows, a.chosen if a.weighted else 1, -1)
    result = np.empty((rows, a.chosen, stacked.shape[2]), np.float32)
    for expert in np.unique(ids):
        at_row, at_choice = np.nonzero(ids == expert)
        read = by_choice[at_row, at_choice if a.weighted else 0]
        products = [read @ matrix.T for matrix in stacked[:, expert]]
        if a.bias:
            biases = weights[1].reshape(*stacked.shape[:3])[:, expert]
            products = [product + bias for product, bias in zip(products, biases, strict=True)]
        if a.activation is not None:
            products = [gate(products[0], products[1], a.activation)]
        result[at_row, at_choice] = products[0]
    return np.einsum("tc,tcd->td", shares, result) if a.weighted else result.reshape(rows, -1)
