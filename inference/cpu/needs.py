"""What a model takes in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

from inference.cpu.executor import PREFILL_CHUNK
from inference.cpu.program import activation_bytes
from inference.kv.factory import NumpyCaches
from inference.kv.layout import LayerGroup, describe_group
from inference.models.config import ModelConfig
from inference.needs import Need, Needs
from inference.plan.build import build
from inference.plan.fuse import fuse
from inference.plan.place import Placement, part_on, place, whole
from inference.rope import table_bytes
from inference.weights import WeightStore


def model_needs(config: ModelConfig, store: WeightStore, placement: Placement | None = None) -> Needs:
    """What the model takes whatever the context: weights in f32, exact to the byte, and the results of all operations
    of a step, each kept for as long as it is read. With a `placement`, what the CPU's part of the model takes.
    Raises BadModelFile where a weight is missing."""
    store.check(build(config, 1, "last"))
    fused = fuse(build(config, PREFILL_CHUNK, "last"), store.formats)
    plan = part_on(place(fused, placement or whole("cpu", config.num_layers)), "cpu")
    weights = {store.storage(ref): ref.rows * ref.columns * 4 for op in plan.ops for ref in op.weights}
    return Needs(
        (
            Need("weights", "f32", sum(weights.values())),
            Need("scratch", f"activations, steps of up to {PREFILL_CHUNK} tokens", activation_bytes(plan)),
        )
    )


def context_needs(config: ModelConfig, groups: Sequence[LayerGroup], context: int) -> Needs:
    """What one conversation of `context` tokens takes: keys and values, and the last step's attention over them.

    Memory for keys and values is taken in steps, so that up to GROWTH_STEP tokens more may be held.
    """
    cache = NumpyCaches(config, groups, PREFILL_CHUNK).new(context)
    needs = [
        Need("KV cache", describe_group(store.group), store.stats(0, context).capacity_bytes) for store in cache.stores
    ]
    rows = min(PREFILL_CHUNK, context)
    layers = [config.layers[layer] for group in groups for layer in group.layers]
    keys = max((min(context, (layer.window or context) + rows - 1) for layer in layers), default=0)
    # (H, T, S) scores, and the layer's keys and values (K, S, E) gathered from their pages.
    attention = config.num_heads * rows * keys * 4 + 2 * config.kv_size * keys * 4
    ropes = {layer.rope for layer in layers}
    needs += [
        Need("scratch", "attention", attention),
        Need("scratch", "rope tables", sum(table_bytes(rope, context) for rope in ropes)),
    ]
    return Needs(tuple(needs))
