"""The explained plan: the tiny models' decode step as text, and that rows say what the ops are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inference.kernels.base import Decision
from inference.plan.build import build
from inference.plan.explain import explain
from inference.plan.fuse import fuse
from inference.plan.place import place, whole
from tests.conftest import DATA
from tests.inference.opening import open_numpy, open_store
from tests.inference.plan.plan_text import FAMILIES, decode_plan, golden_file

Tiny = Callable[[str], Path]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_decode_step_reads_as_in_its_file(family: str) -> None:
    # After a wanted change: python -m tests.inference.plan.plan_text
    assert decode_plan(family) == (DATA / "plans" / golden_file(family)).read_text()


def test_rows_follow_the_ops(tiny: Tiny) -> None:
    executor = open_numpy(tiny("llama") / "gguf" / "model-f16.gguf")
    rows = executor.plan_rows("prefill")
    plan = executor.plan(executor.chunk, "last", sampled=True)
    assert [(row.index, row.layer, row.kind, row.name, row.notes) for row in rows] == [
        (index, op.layer, op.kind, op.name, op.notes) for index, op in enumerate(plan.ops)
    ]
    assert {row.device for row in rows} == {"cpu"}
    assert any(row.kind == "last_row" for row in rows)  # the last row of the chunk goes to the head


def test_dtypes_formats_and_decisions_are_shown(tiny: Tiny) -> None:
    config, store = open_store(tiny("llama") / "gguf" / "model-f16.gguf")
    fused = fuse(build(config, 1, "last", sample=True, dtype="f32", kv_dtype="f16"), store.formats)
    plan = place(fused, whole("webgpu", config.num_layers))
    decision = Decision("fast", "it is faster", (("slow", "it is slower"),))
    rows = {
        row.name: row
        for row in explain(plan, [(decision, index) for index in range(len(plan.ops))], {"webgpu": store.formats})
    }
    assert rows["embedding"].input_dtype == "u32" and rows["embedding"].accumulate == ""
    assert rows["attention"].input_dtype == "f32, f16"
    assert rows["attention.kv_append"].output_dtype == "f32, cache f16"
    assert rows["sample"].output_dtype == "u32"
    assert rows["attention.qkv"].weight == "f16, f32"  # the projections' and the fused norm's
    assert rows["attention.qkv"].shape == "64 x 128"
    assert rows["attention.qkv"].accumulate == "f32"
    row = rows["feed_forward.down"]
    assert (row.variant, row.reason, row.rejected) == ("fast", "it is faster", (("slow", "it is slower"),))
    assert row.dispatches == row.index
