from __future__ import annotations

from dataclasses import replace

import pytest

from app.panels.dtype_panel import plan_cells, plan_detail
from app.panels.kv_panel import cell_letters, cell_size, layer_ranges, map_text
from app.panels.memory_panel import memory_text
from app.screens.models import entry_line, fit_words, why_fit_is_unknown
from app.theme import make_look
from app.widgets.load_bar import load_text
from app.widgets.status_bar import Status, status_line
from inference.events import KV_STATES, KvGroupStats, KvMapGroup, KvStats, Loading, MemoryStats
from inference.fit import Fit
from tests.app.conftest import ENTRIES, FIT
from tests.app.scripted_engine import MIB, ScriptedEngine
from tests.app.scripted_plan import plan_rows

LOOK = make_look({})
KV = KvStats("contiguous", 10, 64, 2048, 10 * 1024, 64 * 1024)


@pytest.mark.parametrize("width", [20, 40, 110])
def test_memory_shows_every_figure_within_its_width(width: int) -> None:
    memory = MemoryStats("webgpu", {"q4_1": 70 * MIB, "f32": MIB}, 71 * MIB, 3 * MIB, 2 * MIB, MIB, 90 * MIB, 200 * MIB,
                         {"max-buffer-size": 1 << 31, "max-compute-invocations-per-workgroup": 1024})  # fmt: skip
    lines = memory_text(memory, KV, LOOK, width).plain.split("\n")
    assert max(map(len, lines)) <= max(width, 24)
    text = "\n".join(lines)
    for figure in ("71.0 MiB", "3.0 MiB", "2.0 MiB", "77.0 MiB", "90.0 MiB", "200.0 MiB", "70.0 MiB", "10 / 64",
                   "2.0 KiB", "10.0 KiB", "64.0 KiB", "204 B", "2.0 GiB", "1,024"):  # fmt: skip
        assert figure in text, figure


def test_memory_of_a_model_that_is_split_is_told_by_device() -> None:
    memory = MemoryStats("webgpu", weights_bytes=5 * MIB, bytes_by_device={"webgpu": 2 * MIB, "cpu": 3 * MIB})
    lines = memory_text(memory, KV, LOOK, 40).plain.split("\n")
    assert [" ".join(line.split()) for line in lines if line.startswith("on ")] == [
        "on webgpu 2.0 MiB",
        "on cpu 3.0 MiB",
    ]


def test_memory_without_limits_or_tokens_leaves_them_out() -> None:
    text = memory_text(ScriptedEngine().memory(), KvStats("contiguous", 0, 0, 8, 0, 0), LOOK, 40).plain
    assert "per token" not in text and "Limits" not in text
    assert memory_text(None, None, LOOK, 40).plain == "No model is loaded."


def test_memory_names_the_layout_of_each_group() -> None:
    groups = (
        KvGroupStats("ring", "", (0, 1, 3), 8, 0, 3 * MIB, 0),
        KvGroupStats("paged", "", (2,), 10, 0, 2 * MIB, 0),
    )
    lines = memory_text(ScriptedEngine().memory(), replace(KV, groups=groups), LOOK, 40).plain.split("\n")
    assert [line.split() for line in lines if "layer" in line] == [
        ["ring,", "3", "layers", "3.0", "MiB"],
        ["paged,", "1", "layer", "2.0", "MiB"],
    ]


TIERED = KvMapGroup("tiered-int8", (0, 1, 2, 4), None, False, "q" * 90 + "h" * 30 + "f" * 8, 8192, 3 * MIB, 5 * MIB)


@pytest.mark.parametrize("width", [24, 74, 116, 300])
def test_the_map_fits_its_width_and_a_context_three_lines(width: int) -> None:
    lines = map_text((TIERED,), LOOK, width).plain.split("\n")
    assert max(map(len, lines[:-1])) <= width
    head, *cells, legend = lines
    size = cell_size(8192, width)
    assert 1 <= len(cells) <= 3 and sum(map(len, cells)) == -(-8192 // size)
    assert head.startswith("tier") and head.endswith("3.0 MiB of 5.0 MiB")
    assert "quantised" in legend and "hot" in legend and "shared" not in legend
    if width >= 74:
        assert f"layers 0-2, 4 · {size} tokens a cell" in head


def test_the_map_tells_the_device_of_a_model_that_is_split() -> None:
    split = (replace(TIERED, device="webgpu"), replace(TIERED, layers=(3,), device="cpu"))
    heads = [line for line in map_text(split, LOOK, 116).plain.split("\n") if line.startswith("tiered")]
    assert "layers 0-2, 4 on webgpu ·" in heads[0] and "layer 3 on cpu ·" in heads[1]
    assert " on " not in map_text((TIERED,), LOOK, 116).plain


def test_a_cell_shows_the_state_that_most_of_what_it_holds_is_in() -> None:
    group = replace(TIERED, cells="qqqhhhhhff", full=16)
    assert cell_letters(group, 1) == "qqqhhhhhff      "
    assert cell_letters(group, 4) == "qhf "
    assert cell_letters(group, 8) == "hf"
    # One token is enough: what is held is never shown as free.
    assert cell_letters(replace(group, cells="h" + "f" * 15), 16) == "h"


def test_glyphs_tell_the_states_apart_without_colours() -> None:
    for together in ("ksof", "hcsof", "hqsof", "bdsof"):
        group = replace(TIERED, cells=together, full=len(together) + 1)
        cells = map_text((group,), LOOK, 80).plain.split("\n")[1]
        assert len(set(cells)) == len(together) + 1
    assert set("ksofhcqbd") == set(KV_STATES)


def test_an_empty_map() -> None:
    assert map_text((), LOOK, 80).plain == "No model is loaded."
    ring = KvMapGroup("ring", (0,), 512, True, "", 0, 0, 0)
    assert "nothing is set aside yet" in map_text((ring,), LOOK, 80).plain


def test_layers_are_named_in_ranges() -> None:
    assert layer_ranges((0, 1, 2, 4, 6, 7)) == "0-2, 4, 6-7"


def test_a_plan_row_shows_dtypes_kernel_and_reasons() -> None:
    row = plan_rows(1, "decode")[1]
    cells = [cell.plain for cell in plan_cells(row, LOOK)]
    assert cells == ["0", "matmul norm+qkv", "f16 → f16", "q4_1", "f32", "1x576 -> 1x960", "gemv_subgroup", "webgpu"]
    detail = plan_detail(row, LOOK).plain
    assert detail.split("\n") == [
        "gemv_subgroup  the first that can run",
        "not gemv_coop  the adapter lacks cooperative matrices",
        "norm fused into matmul",
    ]


@pytest.mark.parametrize("width", [10, 40, 80, 200])
def test_the_status_fills_its_line(width: int) -> None:
    status = Status("日本-model-with-a-long-name", "webgpu f16", "writing", 61.3, 500, 2048, True)
    line = status_line(status, width, {})
    assert line.cell_len == max(width, len(" 61.3 tok/s  ━━━━━━━━━━ 500/2,048") - 1)
    assert line.plain.endswith("61.3 tok/s  ━━━━━━━━━━ 500/2,048")


def test_a_narrow_status_shortens_the_name_before_the_state() -> None:
    status = Status("SmolLM2-135M-Instruct.Q4_1", "cpu f32", "writing", 20.7, 580, 8192, True)
    line = status_line(status, 76, {}).plain
    assert line.startswith("● SmolLM2-135M-Instruct") and "…  cpu f32  writing" in line


def test_progress_shows_share_and_amount() -> None:
    first, second = load_text(Loading("fetching\x1b x", 42 * MIB, 94 * MIB), 80, LOOK).plain.split("\n")
    assert first == "fetching␛ x"
    assert " 45%  42.0 MiB of 94.0 MiB" in second and len(second) == 80
    assert " 55%  1,000 of 1,820 " in load_text(Loading("weights", 1000, 1820, "tensors"), 80, LOOK).plain
    assert load_text(Loading("unknown", 5 * MIB, 0), 80, LOOK).plain == "unknown\n5.0 MiB  esc cancels"


def test_the_menu_says_whether_a_model_fits() -> None:
    sizes = ((2 * MIB, 3 * MIB), (5 * MIB, 3 * MIB), (5 * MIB, None), (None, MIB))
    words = [fit_words(Fit(*pair), LOOK).plain for pair in sizes]
    assert words == ["  fits, 2.0 MiB", "  too large: 5.0 MiB of 3.0 MiB", "  needs 5.0 MiB", ""]
    assert "too large for a buffer" in fit_words(Fit(MIB, None, "keys need one buffer of 9 GiB"), LOOK).plain
    here, to_fetch = replace(ENTRIES[0], fit=FIT), ENTRIES[1]
    assert "Instruct  fits, 600.0 MiB" in entry_line(here, False, LOOK, 84).plain
    assert "fit" not in entry_line(to_fetch, False, LOOK, 84).plain
    assert why_fit_is_unknown([here, to_fetch]) == ""
    assert why_fit_is_unknown([ENTRIES[0]]) == "", "it will be known soon"
    assert "before a device is chosen" in why_fit_is_unknown([to_fetch])
    assert "WebGPU does not tell" in why_fit_is_unknown([replace(to_fetch, fit=Fit(MIB)), to_fetch])


@pytest.mark.parametrize("width", [30, 60, 84])
def test_a_menu_line_fits(width: int) -> None:
    for entry in ENTRIES:
        assert entry_line(entry, False, LOOK, width).cell_len == width
