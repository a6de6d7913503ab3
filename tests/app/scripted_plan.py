"""The plans that a scripted engine tells of."""

from __future__ import annotations

from inference.plan.explain import PlanRow


def plan_rows(layers: int, phase: str) -> list[PlanRow]:
    """A plan with the shape of a small llama's."""
    rows = "1" if phase == "decode" else "128"
    matmul = "gemv_subgroup" if phase == "decode" else "tiled"
    ops = [
        ("matmul", "norm+qkv", "q4_1", f"{rows}x576 -> {rows}x960", matmul),
        ("kv_append", "rope+append", "", f"{rows}x960", "rope_append"),
        ("attention", "attention", "", f"9/3 heads x 64, {rows} rows", "decode_split"),
        ("matmul", "o+residual", "q4_1", f"{rows}x576 -> {rows}x576", matmul),
        ("matmul", "norm+gate_up+silu", "q4_1", f"{rows}x576 -> {rows}x1536", matmul),
        ("matmul", "down+residual", "q4_1", f"{rows}x1536 -> {rows}x576", matmul),
    ]
    every = [(None, ("embed", "embed", "q8_0", f"{rows} -> {rows}x576", "embed"))]
    every += [(layer, op) for layer in range(layers) for op in ops]
    every += [(None, ("lm_head", "norm+lm_head", "q8_0", "1x576 -> 1x49152", "gemv_subgroup"))]
    every += [(None, ("sample", "sample", "", "1x49152 -> 1", "greedy"))]
    return [
        PlanRow(
            index, layer, kind, name, "f16", weight, "f32", "f16", shape, "webgpu", variant, "the first that can run",
            (("gemv_coop", "the adapter lacks cooperative matrices"),), ("norm fused into matmul",),
        )
        for index, (layer, (kind, name, weight, shape, variant)) in enumerate(every)
    ]  # fmt: skip


def lora_rows(layers: int) -> list[PlanRow]:
    """The rows that adapters on q and v add to `plan_rows`."""
    return [
        PlanRow(layer, layer, "lora", "qkv.lora", "f16", "f32", "f32", "f32", "576 x 12", "webgpu", "gemv", "the first")
        for layer in range(layers)
    ]
