"""How many layers go to WebGPU: as many as its memory holds to the byte, or as were asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference import fit_target
from inference.choose_placement import choose_placement
from inference.errors import DoesNotFit
from inference.fit import fit_table
from inference.fit_target import FitTarget, cpu_target, webgpu_target
from inference.model_files import ModelFiles, open_files
from inference.placement import first_layers
from inference.plan.ops import DEVICES, Device
from inference.plan.place import Placement
from tests.inference.test_fit import CAPS
from tests.inference.tiny_golden import folder

CONTEXT = 2048


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return open_files(folder("gemma3_text") / "gguf" / "model-q8_0.gguf")


def card(memory: int | None) -> FitTarget:
    return webgpu_target(CAPS, "DiscreteGPU", "f32", memory)


def needed(files: ModelFiles, placement: Placement, target: FitTarget) -> int:
    found = fit_table(files, CONTEXT, "auto", target, placement).fit.needed
    assert found is not None
    return found


def chosen(files: ModelFiles, memory: int | None, kv_device: Device = "webgpu") -> Placement:
    return choose_placement(files, CONTEXT, "auto", card(memory), None, kv_device)


@pytest.mark.parametrize("kv_device", DEVICES)
def test_as_much_as_fits_to_the_byte(files: ModelFiles, kv_device: Device) -> None:
    layers = files.config.num_layers
    candidates = [
        first_layers(layers, layers, kv_device),
        first_layers(layers, layers, kv_device, head="cpu"),
        *(first_layers(layers, count, kv_device) for count in range(layers - 1, 0, -1)),
        first_layers(layers, 0),
    ]
    sizes = [needed(files, each, card(None)) for each in candidates[:-1]]
    assert sizes == sorted(sizes, reverse=True)
    for size, placement, less in zip(sizes, candidates, candidates[1:], strict=False):
        assert replace(chosen(files, size, kv_device), reason="") == replace(placement, reason="")
        found = chosen(files, size - 1, kv_device)
        assert replace(found, reason="") == replace(less, reason="")
        assert "of --gpu-memory" in found.reason and "\n" not in found.reason


def test_where_the_memory_is_not_known_all_is_on_webgpu(files: ModelFiles) -> None:
    assert chosen(files, None) == first_layers(files.config.num_layers, files.config.num_layers)


def test_where_it_is_the_machine_s_both_parts_must_fit_it(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    half = first_layers(files.config.num_layers, 4)
    limit = needed(files, half, card(None))
    both = limit + needed(files, half, cpu_target())
    shared = webgpu_target(CAPS, "IntegratedGPU", "f32", limit)
    for memory, layers in ((both, 4), (both - 1, 0)):
        monkeypatch.setattr(fit_target, "physical_bytes", lambda memory=memory: memory)
        assert choose_placement(files, CONTEXT, "auto", shared).layers.count("webgpu") == layers


def test_what_was_asked_for_is_refused_where_it_does_not_fit(files: ModelFiles) -> None:
    limit = needed(files, first_layers(files.config.num_layers, 3), card(None))
    assert choose_placement(files, CONTEXT, "auto", card(limit), 3).layers.count("webgpu") == 3
    with pytest.raises(DoesNotFit, match=r"webgpu: 4 of 8 layers; .* does not fit a card: .*; without --gpu-layers"):
        choose_placement(files, CONTEXT, "auto", card(limit), 4)


def test_a_model_that_fits_nowhere_is_refused(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_target, "physical_bytes", lambda: 1000)
    with pytest.raises(DoesNotFit, match="does not fit a card"):
        chosen(files, 1000)
    with pytest.raises(DoesNotFit, match="does not fit the CPU"):
        choose_placement(files, CONTEXT, "auto", card(None), 0)
