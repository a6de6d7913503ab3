"""What a step moves between the host's memory and the device's buffers: logits, and the tensors of a split model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from inference.kernels.dispatch import Binding
from inference.plan.ops import ITEMSIZE, DType, TensorRef

NUMPY_DTYPES: dict[DType, type] = {"f32": np.float32, "f16": np.float16}


def write_tensor(device: Any, buffers: Mapping[Binding, Any], tensor: TensorRef, values: np.ndarray) -> None:
    """Put the rows of a step (T, columns), float32, into the buffer of `tensor`, in its dtype."""
    stored: np.ndarray = np.ascontiguousarray(values, NUMPY_DTYPES[tensor.dtype])
    device.queue.write_buffer(buffers[Binding("tensor", tensor.name)], 0, stored)


def read_tensor(device: Any, buffers: Mapping[Binding, Any], tensor: TensorRef, rows: int) -> np.ndarray:
    """The rows of a step of `rows` in the buffer of `tensor`, float32 (T, columns); waits for the device."""
    rows = min(rows, tensor.rows)  # Of logits there may be the last row only.
    size = rows * tensor.columns * ITEMSIZE[tensor.dtype]
    raw = device.queue.read_buffer(buffers[Binding("tensor", tensor.name)], 0, size)
    return np.frombuffer(raw, NUMPY_DTYPES[tensor.dtype]).reshape(rows, -1).astype(np.float32, copy=False)
