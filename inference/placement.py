"""Where the parts of a model go: the first layers on WebGPU, the rest on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inference.kv.layout import LayerGroup
from inference.plan.ops import DEVICES, Device
from inference.plan.place import Placement, whole


def first_layers(
    num_layers: int, gpu_layers: int, kv_device: Device = "webgpu", head: Device | None = None, reason: str = ""
) -> Placement:
    """The first `gpu_layers` on WebGPU. With `kv_device` "cpu" their keys, values and attention are on the CPU.

    The head follows the last layer unless `head` says otherwise. The embedding is where the head is, since both may be
    one matrix; looking up a row is cheap anywhere.
    """
    if gpu_layers == 0:
        return whole("cpu", num_layers, reason)
    layers = tuple[Device, ...]("webgpu" if layer < gpu_layers else "cpu" for layer in range(num_layers))
    attention = tuple[Device, ...]("cpu" if kv_device == "cpu" else layer for layer in layers)
    head = head or layers[-1]
    return Placement(head, layers, attention, head, reason)


def groups_on(groups: Sequence[LayerGroup], placement: Placement, device: Device) -> tuple[LayerGroup, ...]:
    """The layers of `groups` whose caches are on `device`."""
    found = []
    for group in groups:
        if layers := tuple(layer for layer in group.layers if placement.attention[layer] == device):
            found.append(replace(group, layers=layers, device=device if placement.split else ""))
    return tuple(found)


def split_groups(groups: Sequence[LayerGroup], placement: Placement) -> list[LayerGroup]:
    """The groups by device, in the order of their first layers."""
    parts = [part for device in DEVICES for part in groups_on(groups, placement, device)]
    return sorted(parts, key=lambda group: group.layers)


def describe(placement: Placement) -> str:
    """ "webgpu: 12 of 30 layers; cpu: 18 layers, embedding and head", with what is elsewhere than its layer."""
    parts = []
    for device in DEVICES:
        layers = placement.layers.count(device)
        held = [f"{layers} of {len(placement.layers)} layers"] if layers else []
        if placement.embedding == device:
            held.append("the embedding")
        if placement.head == device:
            held.append("the head")
        apart = sum(
            where == device != layer for layer, where in zip(placement.layers, placement.attention, strict=True)
        )
        if apart:
            held.append(f"keys, values and attention of {apart} layers more")
        if held:
            parts.append(f"{device}: {', '.join(held)}")
    return "; ".join(parts)
