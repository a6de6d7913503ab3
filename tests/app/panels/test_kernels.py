"""Kernels: equal layers are one row which unfolds, and times are those of the operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from textual.widgets import DataTable

from app.panels.kernel_groups import group_kernels
from app.panels.kernels_panel import KernelsPanel, kernel_cells, kernel_detail, times_text
from app.theme import make_look
from inference.errors import DeviceUnavailable
from inference.op_times import OpTimes
from tests.app.conftest import MadeApp
from tests.app.panels.conftest import column, open_panel, shown
from tests.app.scripted_engine import Script
from tests.app.scripted_plan import plan_rows
from tests.app.test_chat import chat, loaded, say, until

LOOK = make_look({})
MakeApp = Callable[..., MadeApp]


def times(count: int) -> OpTimes:
    return OpTimes("decode", tuple((place + 1) * 1e-6 for place in range(count)), 1e-4, 1, 512, 9)


def test_equal_layers_are_one_group() -> None:
    rows = plan_rows(30, "decode")
    groups = group_kernels(rows, times(len(rows)))
    assert [len(group.rows) for group in groups] == [1, *([30] * 6), 1, 1]
    assert sorted(row.index for group in groups for row in group.rows) == [row.index for row in rows]
    assert sum(group.dispatches for group in groups) == 183
    assert groups[1].layers == tuple(range(30)) and groups[0].layers == ()
    for group in groups:
        # Every operation keeps its own time.
        assert group.seconds == tuple((row.index + 1) * 1e-6 for row in group.rows)
        assert group.single(0).seconds == group.seconds[:1]


def test_a_layer_with_another_kernel_stands_apart() -> None:
    rows = [replace(row, variant="gemv") if row.layer == 2 else row for row in plan_rows(4, "decode")]
    found = {(group.rows[0].name, group.rows[0].variant): group.layers for group in group_kernels(rows, None)}
    assert found["norm+qkv", "gemv_subgroup"] == (0, 1, 3)
    assert found["norm+qkv", "gemv"] == (2,)


def test_the_detail_has_reasons_and_the_spread() -> None:
    rows = plan_rows(4, "decode")
    group = group_kernels(rows, times(len(rows)))[1]
    assert kernel_detail(group, LOOK).plain.split("\n") == [
        "gemv_subgroup  the first that can run",
        "not gemv_coop  the adapter lacks cooperative matrices",
        "layers 0-3, 2.0 to 20.0 µs each, the most in layer 3",
    ]


def test_it_says_what_timing_costs_and_what_was_timed() -> None:
    rows = tuple(plan_rows(1, "decode"))
    assert "splits the step and makes it slower" in times_text(rows, None, LOOK).plain
    text = times_text(rows, times(len(rows)), LOOK).plain
    assert "45 µs for all operations on the GPU, by its timestamps (1 token after 512, 9 steps, median)" in text
    assert "100 µs as the one pass that runs otherwise" in text
    on_cpu = tuple(replace(row, device="cpu") for row in rows)
    assert "by the clock" in times_text(on_cpu, times(len(rows)), LOOK).plain
    assert "pass" not in times_text(on_cpu, times(len(rows)), LOOK).plain
    assert times_text((), None, LOOK).plain == ""


def test_of_a_model_that_is_split_devices_and_what_moves_are_told() -> None:
    rows = [replace(row, device="cpu") if row.layer == 2 else row for row in plan_rows(4, "decode")]
    copy = replace(rows[0], index=len(rows), kind="copy", name="to_cpu", moved_bytes=2304)
    groups = group_kernels([*rows, copy], None)
    cells = [kernel_cells(group, False, False, 0.0, LOOK, split=True)[2].plain for group in groups]
    assert {cell.partition(" · ")[2] for cell in cells} == {"webgpu", "cpu"}
    assert "2,304 bytes a token each" in kernel_detail(groups[-1], LOOK).plain
    text = times_text((*rows, copy), times(len(rows) + 1), LOOK).plain
    assert "on both devices" in text and "one pass" not in text


async def test_the_panel_unfolds_layers_and_times_them(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await open_panel(pilot, "k")
        panel = chat(pilot).query_one(KernelsPanel)
        table: DataTable[object] = panel.query_one(DataTable)
        await until(pilot, lambda: table.row_count == 9 and table.has_focus)
        assert column(table, 0) == ["", *(["▸ 4 x"] * 6), "", ""]
        assert column(table, 3) == [""] * 9
        await pilot.press("down", "enter")
        assert column(table, 0)[1:6] == ["▾ 4 x", "  0", "  1", "  2", "  3"]
        await pilot.press("t")
        await until(pilot, lambda: column(table, 3)[0] != "")
        # The scripted engine's operation n takes n + 1 µs: 2 + 8 + 14 + 20.
        assert column(table, 3)[:6] == ["1.0", "44.0", "2.0", "8.0", "14.0", "20.0"]
        assert column(table, 4)[1] == f"{44 / (27 * 14):.1%}"
        assert "378 µs for all operations" in shown(pilot, "#kernel-times")
        await pilot.press("enter", "p")
        assert table.row_count == 9 and "prefill" in str(panel.border_title)
        assert column(table, 2)[1] == "tiled" and column(table, 3)[1] == ""


async def test_what_was_measured_goes_with_the_plan(make_app: MakeApp) -> None:
    async with make_app(Script(error=DeviceUnavailable("no clock"))).run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await open_panel(pilot, "k")
        table: DataTable[object] = chat(pilot).query_one(KernelsPanel).query_one(DataTable)
        await pilot.press("t")
        await until(pilot, lambda: shown(pilot, "#kernel-times") == "no clock")
        await pilot.press("escape")
        await say(pilot, "/lora pirate")
        await until(pilot, lambda: table.row_count > 9)
        assert "qkv.lora" in column(table, 1)
        assert shown(pilot, "#kernel-times").startswith("t times")
