"""Where the rows of a weight go when a binding cannot hold them all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from inference.errors import DoesNotFit
from inference.formats.planar import FORMATS, PlanarTensor, from_dense
from inference.gpu.weights import ROW_ALIGNMENT, device_formats, part_planes, plan_parts
from inference.models.config import ModelConfig
from inference.plan.build import build
from inference.plan.fuse import fuse
from tests.conftest import DATA
from tests.inference.opening import open_store


def matrix(rows: int, columns: int) -> PlanarTensor:
    """Each weight says where it stands."""
    return from_dense(np.arange(rows * columns, dtype=np.float32).reshape(rows, columns))


@given(rows=st.integers(1, 700), columns=st.integers(1, 40), gated=st.booleans(), max_binding=st.integers(1, 60_000))
def test_parts_hold_every_row_once_and_fit(rows: int, columns: int, gated: bool, max_binding: int) -> None:
    rows *= 2 if gated else 1
    row_bytes = columns * 4
    fold = 2 if gated else 1
    assume(rows * row_bytes <= max_binding or ROW_ALIGNMENT * fold * row_bytes <= max_binding)
    tensor = matrix(rows, columns)
    parts = plan_parts("w", tensor.format, rows, columns, gated, max_binding).parts
    assert [part.first_row for part in parts] == np.cumsum([0, *(part.rows for part in parts)])[:-1].tolist()
    assert sum(part.rows for part in parts) == rows
    assert all(0 < part.rows * row_bytes <= max_binding for part in parts)
    assert all(part.first_row % (ROW_ALIGNMENT * fold) == 0 for part in parts)
    pieces = [PlanarTensor(tensor.format, part.rows, columns, part_planes(tensor, part, gated)) for part in parts]
    first_column = [piece.dequantize()[:, 0] / columns for piece in pieces]  # the rows' numbers
    if not gated:
        assert np.concatenate(first_column).tolist() == list(range(rows))
        return
    gate = np.concatenate([numbers[: len(numbers) // 2] for numbers in first_column])
    up = np.concatenate([numbers[len(numbers) // 2 :] for numbers in first_column])
    assert gate.tolist() == list(range(rows // 2)) and up.tolist() == list(range(rows // 2, rows))


def test_one_part_where_it_fits() -> None:
    assert len(plan_parts("w", FORMATS["f32"], 128, 8, False, 128 * 32).parts) == 1
    assert len(plan_parts("w", FORMATS["f32"], 129, 8, False, 128 * 32).parts) == 2


@pytest.mark.parametrize("gated", [False, True])
def test_rows_that_are_too_long(gated: bool) -> None:
    with pytest.raises(DoesNotFit, match=r"token_embd\.weight: [0-9]+ rows of 400 bytes do not fit"):
        plan_parts("token_embd.weight", FORMATS["f32"], 256, 100, gated, 63 * 400 * (2 if gated else 1))


def test_every_plane_of_a_quantised_weight_is_split_alike() -> None:
    columns, rows = 256, 200
    planes = {
        name: np.arange(rows * words, dtype=np.uint32).reshape(rows, words)
        for name, words in {"low": 32, "high": 16, "scales": 4, "supers": 1}.items()
    }
    tensor = PlanarTensor(FORMATS["q6_k"], rows, columns, planes)
    weight = plan_parts("w", tensor.format, rows, columns, False, 64 * 128)
    assert [part.rows for part in weight.parts] == [64, 64, 64, 8]
    for name, plane in planes.items():
        parts = [part_planes(tensor, part, False)[name] for part in weight.parts]
        np.testing.assert_array_equal(np.concatenate(parts), plane)


def test_formats_on_the_device_are_those_of_stacked_weights() -> None:
    config: ModelConfig
    config, store = open_store(DATA / "tiny" / "llama" / "gguf" / "model-q8_0.gguf")
    changed = dict(store.formats) | {"layers.0.attention.k": "q5_0", "layers.1.attention.v": "q4_1"}
    store.formats = changed
    found = device_formats(store.formats, fuse(build(config, 1, "last"), changed))
    assert found["layers.0.attention.k"] == "q8_0"  # stacked with q and v, and widened to them
    assert found["layers.1.attention.v"] == "q4_1"
    assert found["embedding"] == "q8_0" and found["layers.0.attention.norm"] == "f32"
