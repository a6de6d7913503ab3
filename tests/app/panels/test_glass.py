"""The glass is true: what panels show is what runs, and a change of the run is seen in them exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable

from app.engine_thread import EngineThread
from app.model_list import resolve_adapter
from app.panels.dtype_panel import DtypePanel, plan_cells
from app.panels.kernel_groups import group_kernels
from app.panels.kernels_panel import KernelsPanel
from app.panels.memory_panel import MemoryPanel, memory_text
from app.panels.names import PANELS
from app.panels.timing_figures import timing_figures
from app.settings import Sources
from app.start import Start
from app.store.store import Store as History
from app.theme import make_look
from inference import Engine
from inference.hub import Store
from tests.app.conftest import ENTRIES, FIT, MadeApp
from tests.app.panels.conftest import column, shown
from tests.app.test_chat import chat, say, state, transcript, until

TINY = Path(__file__).parents[2] / "data" / "tiny"
QWEN3, ADAPTER = TINY / "qwen3", TINY / "qwen3" / "lora" / "adapter1"


@pytest.fixture
def real_app(tmp_path: Path) -> Callable[..., tuple[MadeApp, list[Engine]]]:
    """The app over the tiny Qwen 3 with all panels open, and the engines that it opened."""

    def make(**options: Any) -> tuple[MadeApp, list[Engine]]:
        engines: list[Engine] = []

        def open_engine(path: str, kv: str, progress: Any, gpu_layers: int | None) -> Engine:
            placed = {"gpu_layers": gpu_layers} if gpu_layers is not None else {}
            engines.append(Engine.open(path, kv=kv, progress=progress, **options | placed))
            return engines[-1]

        thread = EngineThread(
            lambda model, kv, progress, cancelled: model,
            open_engine,
            partial(resolve_adapter, store=Store(tmp_path, tmp_path)),
        )
        settings = {"theme": "glass", "open_panels": tuple(PANELS), "temperature": 0.0, "max_tokens": 8}
        sources = Sources(tmp_path / "settings.toml", settings)
        start = Start(model=str(QWEN3))
        return MadeApp(thread, History(None), lambda _: list(ENTRIES), lambda *_: FIT, sources, start), engines

    return make


async def at_rest(pilot: Pilot[None], engines: list[Engine], count: int) -> Engine:
    """Wait until that many engines were opened and the last one has nothing to do."""
    await until(pilot, lambda: len(engines) == count and state(pilot) == "ready", 20)
    return engines[-1]


async def talk(pilot: Pilot[None], text: str, replies: int) -> None:
    await say(pilot, text)
    await until(pilot, lambda: transcript(pilot).text.count("tok/s") == replies and state(pilot) == "ready", 20)


def check(pilot: Pilot[None], engine: Engine) -> None:
    """Every panel against the engine itself."""
    screen, look = chat(pilot), make_look({})
    plan = engine.plan("decode")
    dtypes: DataTable[object] = screen.query_one(DtypePanel).query_one(DataTable)
    cells = [[str(cell) for cell in dtypes.get_row_at(row)] for row in range(dtypes.row_count)]
    assert cells == [[cell.plain for cell in plan_cells(row, look)] for row in plan]
    kernels: DataTable[object] = screen.query_one(KernelsPanel).query_one(DataTable)
    groups = group_kernels(plan, None)
    assert [name.partition(" · ")[0] for name in column(kernels, 2)] == [group.rows[0].variant for group in groups]
    assert column(kernels, 5) == [str(group.dispatches) for group in groups]
    sequence: Any = screen._engine._sequence
    memory = engine.memory()
    panel = screen.query_one(MemoryPanel)
    told = panel._memory
    assert told is not None and panel._kv == sequence.kv_stats()
    # To the byte.
    for part in ("weights_by_format", "weights_bytes", "kv_bytes", "scratch_bytes", "staging_bytes", "peak_bytes"):
        assert getattr(told, part) == getattr(memory, part), part
    width = panel.scrollable_content_region.width
    assert shown(pilot, "#memory-body").split() == memory_text(told, panel._kv, look, width).plain.split()
    for group in sequence.kv_map():
        assert group.layout in shown(pilot, "#kv-body") and group.device in shown(pilot, "#kv-body")


def check_reply(pilot: Pilot[None], engine: Engine, sequence: Any, stopped: bool = False) -> None:
    """The panels of the last reply against what the cache holds."""
    trace = chat(pilot).panels._trace
    # The last token has been shown, but not been read by the model, unless more were sampled before it was stopped.
    shown_ids, held = (*trace.prompt, *trace.ids), sequence.token_ids
    assert held[: len(shown_ids) - 1] == shown_ids[:-1]
    assert stopped or len(held) == len(shown_ids) - 1
    tree = chat(pilot).conversation.tree
    assert tree.active is not None
    reply = tree.loaded(tree.active)
    assert reply is not None and reply.text == engine.tokenizer.decode(trace.ids)
    assert all(trace.alternatives(place)[0][0] == id for place, id in enumerate(trace.ids)), (
        "greedy takes the likeliest"
    )
    figures = timing_figures(trace)
    assert figures is not None and figures.covered == pytest.approx(1.0, abs=0.1)
    assert figures.tokens == len(trace) and f"{figures.tokens} tokens" in shown(pilot, "#timing-head")
    assert f"token  {len(trace)} of {len(trace)}" in shown(pilot, "#token-facts")
    assert f"{len(trace.prompt)} tokens" in shown(pilot, "#prompt-head")


async def test_layout_adapter_and_cancel(real_app: Callable[..., Any]) -> None:
    app, engines = real_app(device="cpu")
    async with app.run_test(size=(160, 50)) as pilot:
        engine = await at_rest(pilot, engines, 1)
        await talk(pilot, "hello", 1)
        sequence: Any = app._engine._sequence
        check(pilot, engine)
        check_reply(pilot, engine, sequence)
        before = list(sequence.token_ids)
        await talk(pilot, "more", 2)
        check_reply(pilot, engine, sequence)
        reused = chat(pilot).panels._trace.reused
        assert before[:reused] == list(sequence.token_ids[:reused]) and reused >= len(before) - 8 > 0
        assert f"{reused} reused" in shown(pilot, "#prompt-head")

        chat(pilot).model.use_layout("tiered-int8")
        engine = await at_rest(pilot, engines, 2)
        await until(pilot, lambda: "tiered-int8" in shown(pilot, "#kv-body"))
        check(pilot, engine)

        chat(pilot).loras.run(str(ADAPTER))
        await until(pilot, lambda: bool(engine.adapters.applied), 20)
        kernels: DataTable[object] = chat(pilot).query_one(KernelsPanel).query_one(DataTable)
        await until(pilot, lambda: any("lora" in name for name in column(kernels, 1)))
        check(pilot, engine)

        chat(pilot).conversation.max_tokens = None
        await say(pilot, "on and on")
        await until(pilot, lambda: len(chat(pilot).panels._trace) > 20, 20)
        await pilot.press("escape")
        await until(pilot, lambda: state(pilot) == "ready", 20)
        assert "adapters f32" in shown(pilot, "#memory-body"), "in use, they take memory"
        check(pilot, engine)
        check_reply(pilot, engine, app._engine._sequence, stopped=True)


@pytest.mark.gpu
async def test_dtype_and_kernel(real_app: Callable[..., Any]) -> None:
    attention = {}
    for options in ({"dtype": "f32"}, {"dtype": "f16", "kernels": ("force:decode_streaming",)}):
        app, engines = real_app(device="webgpu", **options)
        async with app.run_test(size=(160, 50)) as pilot:
            engine = await at_rest(pilot, engines, 1)
            await talk(pilot, "hello", 1)
            check(pilot, engine)
            check_reply(pilot, engine, app._engine._sequence)
            # The pool's own accounting is of the buffers that there are.
            pool: Any = engine.executor._pool  # type: ignore[attr-defined]
            sizes = Counter[str]()
            for buffer, purpose in pool._held.values():
                sizes[purpose] += buffer.size
            told = chat(pilot).query_one(MemoryPanel)._memory
            assert told is not None
            parts = (told.weights_bytes, told.kv_bytes, told.scratch_bytes, told.staging_bytes)
            assert parts == tuple(sizes[purpose] for purpose in ("weights", "kv", "scratch", "staging"))
            row = next(row for row in engine.plan("decode") if row.kind == "attention")
            attention[options["dtype"]] = (row.output_dtype, row.variant)
    assert attention["f32"][0] == "f32" and attention["f16"] == ("f16", "decode_streaming")
    assert attention["f32"][1] != "decode_streaming"


@pytest.mark.gpu
async def test_a_model_that_is_split_and_placed_anew(real_app: Callable[..., Any]) -> None:
    app, engines = real_app(device="webgpu", dtype="f32", kv_device="cpu")
    async with app.run_test(size=(160, 50)) as pilot:
        await at_rest(pilot, engines, 1)
        await say(pilot, "/place 2")
        engine = await at_rest(pilot, engines, 2)
        assert "webgpu: 2 of 4 layers; cpu: 2 of 4 layers" in " ".join(transcript(pilot).text.split())
        assert chat(pilot)._status.status.device.startswith("webgpu+cpu f32")
        await talk(pilot, "hello", 1)
        check(pilot, engine)
        check_reply(pilot, engine, app._engine._sequence)
        moved = sum(row.moved_bytes for row in engine.plan("decode"))
        config = engine.config
        assert moved == 4 * (2 * config.hidden_size + 2 * 2 * (config.q_size + config.kv_size))
        assert f"{moved:,} B" in shown(pilot, "#timing-spans") and "both devices" in shown(pilot, "#timing-spans")
        assert "on webgpu" in shown(pilot, "#memory-body") and "on cpu" in shown(pilot, "#memory-body")
        kernels: DataTable[object] = chat(pilot).query_one(KernelsPanel).query_one(DataTable)
        assert {name.partition(" · ")[2] for name in column(kernels, 2)} == {"webgpu", "cpu"}
        await say(pilot, "/place 0")
        engine = await at_rest(pilot, engines, 3)
        assert engine.info.device == "cpu"
        await talk(pilot, "more", 2)
        assert "both devices" not in shown(pilot, "#timing-spans")
