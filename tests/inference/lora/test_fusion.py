"""What adapters do to a plan: at most one more matmul for each that there was, and the same numbers."""

from inference.lora.adapter_set import AdapterSet, AppliedAdapter
from inference.lora.read import read_adapter
from inference.plan.build import build
from inference.plan.fuse import fuse
from inference.plan.ops import Matmul, Op
from tests.inference.opening import open_store
from tests.inference.tiny_golden import folder


def fused_ops(*names: str) -> tuple[list[Op], AdapterSet]:
    config, store = open_store(folder("llama") / "config.json")
    applied = [AppliedAdapter(read_adapter(folder("llama") / "lora" / name, config)) for name in names]
    adapters = AdapterSet(config, tuple(applied))
    plan = build(config, 1, "last", lora_ranks=adapters.ranks)
    return list(fuse(plan, store.formats | adapters.formats).ops), adapters


def in_layer_0(ops: list[Op]) -> dict[str, Op]:
    return {op.name: op for op in ops if op.layer == 0}


def test_all_projections_keep_their_fusions() -> None:
    plain, _ = fused_ops()
    ops, _ = fused_ops("adapter1")
    names = list(in_layer_0(ops))
    assert [name for name in names if not name.endswith(".lora")] == list(in_layer_0(plain))
    assert len([name for name in names if name.endswith(".lora")]) == 4
    merged = in_layer_0(ops)["attention.qkv"]
    assert merged.attributes.lora and merged.attributes.norm_eps
    assert any(note.startswith("lora_into_matmul: attention.q.lora") for note in merged.notes)


def test_two_adapters_cost_no_more_operations_than_one() -> None:
    one, _ = fused_ops("adapter1")
    both, adapters = fused_ops("adapter1", "adapter2")
    assert [op.name for op in both] == [op.name for op in one]
    low = in_layer_0(both)["attention.qkv.lora"]
    # Ranks 4 and 8 on q and v, 4 on k.
    assert isinstance(low.attributes, Matmul) and low.output.columns == 12 + 4 + 12
    assert adapters.load(low.weights[0]).rows == 28


def test_b_matrices_of_merged_projections_lie_block_diagonally() -> None:
    ops, adapters = fused_ops("adapter2")
    merged = in_layer_0(ops)["attention.qkv"]
    b = adapters.load(merged.weights[1]).dequantize()
    part = adapters.applied[0].adapter.parts
    q, v = part["layers.0.attention.q"].b, part["layers.0.attention.v"].b
    assert b.shape == (len(q) + len(v) + len(v), q.shape[1] + v.shape[1])
    assert (b[: len(q), : q.shape[1]] == q).all() and (b[-len(v) :, q.shape[1] :] == v).all()
    assert not b[len(q) : -len(v)].any() and not b[: len(q), q.shape[1] :].any()
