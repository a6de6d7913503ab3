"""Placing: copies exactly at the borders, each once, and segments that know what is read after them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.placement import describe, first_layers
from inference.plan.build import build
from inference.plan.fuse import fuse
from inference.plan.ops import DEVICES, Device, Plan
from inference.plan.place import Placement, moved_bytes, part_on, place, segments, whole
from tests.conftest import DATA
from tests.inference.opening import open_store
from tests.inference.plan.plan_text import FAMILIES, placed_file, placed_plan
from tests.inference.tiny_golden import folder


def fused(family: str, rows: int = 1) -> tuple[Any, Plan]:
    config, store = open_store(folder(family) / "config.json")
    return config, fuse(build(config, rows, "last", sample=True), store.formats)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kv_device", DEVICES)
def test_a_placed_plan_reads_as_in_its_file(family: str, kv_device: Device) -> None:
    # After a wanted change: python -m tests.inference.plan.plan_text
    assert placed_plan(family, kv_device) == (DATA / "plans" / placed_file(family, kv_device)).read_text()


@pytest.mark.parametrize("device", DEVICES)
def test_on_one_device_only_the_device_is_added(device: Device) -> None:
    config, plan = fused("qwen3_moe")
    placed = place(plan, whole(device, config.num_layers))
    assert {op.device for op in placed.ops} == {device}
    assert [(op.kind, op.inputs, op.output) for op in placed.ops] == [(o.kind, o.inputs, o.output) for o in plan.ops]
    (only,) = segments(placed)
    assert only.plan == placed and only.last


@pytest.mark.parametrize("family", ["llama", "olmo2", "gemma3_text", "phi3", "qwen3_moe"])
@pytest.mark.parametrize("gpu_layers", [1, 2, 3])
def test_bytes_moved_for_a_token(family: str, gpu_layers: int) -> None:
    """Hidden size times element size at each border of the stream; q, k and v down and the attention's output up."""
    config, plan = fused(family)
    stream, borders = config.hidden_size * 4, 2
    placed = place(plan, first_layers(config.num_layers, gpu_layers))
    if gpu_layers == config.num_layers:
        assert sum(map(moved_bytes, placed.ops)) == 0
        return
    assert sum(map(moved_bytes, placed.ops)) == borders * stream
    placed = place(plan, first_layers(config.num_layers, gpu_layers, "cpu"))
    attention = 4 * (config.q_size + 2 * config.kv_size + config.q_size)
    assert sum(map(moved_bytes, placed.ops)) == borders * stream + gpu_layers * attention


@given(data=st.data())
def test_any_placement_runs_each_operation_once_with_what_it_reads_at_hand(data: st.DataObject) -> None:
    """Every device for every part: each input is there, made on the same device or copied there, each copy is read."""
    config, plan = fused("gemma3_text", rows=8)
    device = st.sampled_from(DEVICES)
    layers, attention = (
        tuple(data.draw(st.lists(device, min_size=config.num_layers, max_size=config.num_layers))) for _ in range(2)
    )
    placement = Placement(data.draw(device), layers, attention, data.draw(device), "")
    placed = place(plan, placement)
    assert [op.name for op in placed.ops if op.kind != "copy"] == [op.name for op in plan.ops]
    lies: dict[str, Device] = {}
    for op in placed.ops:
        if op.kind == "copy":
            (source,) = op.inputs
            assert op.attributes.to != lies[source.name]  # type: ignore[union-attr]
            lies[op.output.name] = op.attributes.to  # type: ignore[union-attr]
            continue
        assert op.device is not None
        assert {lies[tensor.storage.name] for tensor in op.inputs} <= {op.device}
        lies[op.output.name] = op.device
    read = Counter(tensor.storage.name for op in placed.ops for tensor in op.inputs)
    assert all(read[op.output.name] for op in placed.ops if op.kind == "copy")
    turns = segments(placed)
    assert [op for turn in turns for op in turn.plan.ops] == list(placed.ops)
    assert all(one.device != other.device for one, other in pairwise(turns))
    assert sum(len(part_on(placed, each).ops) for each in DEVICES) == len(placed.ops)


def test_a_placement_in_words() -> None:
    assert describe(first_layers(4, 0)) == "cpu: 4 of 4 layers, the embedding, the head"
    assert describe(first_layers(4, 3)) == "webgpu: 3 of 4 layers; cpu: 1 of 4 layers, the embedding, the head"
    assert describe(first_layers(4, 4, "cpu")) == (
        "webgpu: 4 of 4 layers, the embedding, the head; cpu: keys, values and attention of 4 layers more"
    )
