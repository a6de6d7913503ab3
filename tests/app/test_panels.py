from __future__ import annotations

import pytest

from app.panels.dtype_panel import plan_cells, plan_detail
from app.panels.memory_panel import memory_text
from app.screens.models import entry_line
from app.theme import make_look
from app.widgets.load_bar import load_text
from app.widgets.status_bar import Status, status_line
from inference.events import KvStats, Loading, MemoryStats
from tests.app.conftest import ENTRIES
from tests.app.scripted_engine import MIB, ScriptedEngine, plan_rows

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


def test_memory_without_limits_or_tokens_leaves_them_out() -> None:
    text = memory_text(ScriptedEngine().memory(), KvStats("contiguous", 0, 0, 8, 0, 0), LOOK, 40).plain
    assert "per token" not in text and "Limits" not in text
    assert memory_text(None, None, LOOK, 40).plain == "No model is loaded."


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


def test_progress_shows_share_and_amount() -> None:
    first, second = load_text(Loading("fetching\x1b x", 42 * MIB, 94 * MIB), 80, LOOK).plain.split("\n")
    assert first == "fetching␛ x"
    assert " 45%  42.0 MiB of 94.0 MiB" in second and len(second) == 80
    assert load_text(Loading("unknown", 5 * MIB, 0), 80, LOOK).plain == "unknown\n5.0 MiB  esc cancels"


@pytest.mark.parametrize("width", [30, 60, 84])
def test_a_menu_line_fits(width: int) -> None:
    for entry in ENTRIES:
        assert entry_line(entry, False, LOOK, width).cell_len == width
