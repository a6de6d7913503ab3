"""Which layout each layer gets, with the reason, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from inference.errors import LayoutUnavailable
from inference.kv.choose import LAYOUTS, choose_layouts
from inference.kv.layout import LayerGroup, describe_groups
from inference.models.config import ModelConfig
from tests.inference.opening import open_store

Tiny = Callable[[str], Path]


def with_windows(tiny: Tiny, windows: Sequence[int | None]) -> ModelConfig:
    """The tiny llama's config with one layer for each window."""
    config, _ = open_store(tiny("llama") / "gguf" / "model-f16.gguf")
    return replace(config, layers=tuple(replace(config.layers[0], window=window) for window in windows))


def shapes(groups: Sequence[LayerGroup]) -> list[tuple[str, tuple[int, ...], int | None]]:
    return [(group.layout, group.layers, group.window) for group in groups]


def test_auto_gives_rings_to_windows_and_pages_to_the_rest(tiny: Tiny) -> None:
    groups = choose_layouts(with_windows(tiny, [32, 32, None, 32, None]), "auto")
    assert shapes(groups) == [("ring", (0, 1, 3), 32), ("paged", (2, 4), None)]
    assert groups[0].reason == "these layers see 32 tokens: older ones are dropped"
    assert "whole context" in groups[1].reason
    assert describe_groups(groups) == "ring (3 layers), paged (2 layers)"


def test_auto_without_windows_is_paged(tiny: Tiny) -> None:
    groups = choose_layouts(with_windows(tiny, [None, None]), "auto")
    assert shapes(groups) == [("paged", (0, 1), None)]
    assert describe_groups(groups) == "paged"


def test_each_window_has_a_ring_of_its_own(tiny: Tiny) -> None:
    groups = choose_layouts(with_windows(tiny, [None, 64, 32, 64]), "ring")
    assert shapes(groups) == [("paged", (0,), None), ("ring", (1, 3), 64), ("ring", (2,), 32)]


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "ring"])
def test_a_layout_asked_for_has_all_layers(tiny: Tiny, layout: str) -> None:
    """One group whatever the windows: these layouts keep every token."""
    (group,) = choose_layouts(with_windows(tiny, [32, None, 64, None]), layout)
    assert (group.layout, group.layers, group.window) == (layout, (0, 1, 2, 3), None)
    assert group.reason.startswith("asked for")


def test_a_ring_needs_windows(tiny: Tiny) -> None:
    with pytest.raises(LayoutUnavailable, match=r"ring layout needs .*sliding window, model-f16 has none") as caught:
        choose_layouts(with_windows(tiny, [None]), "ring")
    assert "\n" not in str(caught.value)


def test_an_unknown_layout_is_refused_with_the_known_ones(tiny: Tiny) -> None:
    with pytest.raises(LayoutUnavailable, match=f"no KV layout 'heap'; choose auto or one of {', '.join(LAYOUTS)}"):
        choose_layouts(with_windows(tiny, [None]), "heap")
