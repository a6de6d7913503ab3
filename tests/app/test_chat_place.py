"""`/place`: the model is loaded anew with its layers elsewhere."""

from __future__ import annotations

from tests.app.test_chat import MakeApp, answered, loaded, say, state, until
from tests.app.test_chat_kv import said


async def test_layers_move_with_the_model_loaded_anew(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await loaded(pilot)
        await say(pilot, "one")
        await answered(pilot)
        await say(pilot, "/place 2")
        await until(pilot, lambda: "read anew with your next message" in said(pilot))
        await say(pilot, "/kv tiered")
        await until(pilot, lambda: len(app.engines) == 3 and state(pilot) == "ready")
        await say(pilot, "/place auto")
        await until(pilot, lambda: len(app.engines) == 4 and state(pilot) == "ready")
    assert [engine.options["gpu_layers"] for engine in app.engines] == [None, 2, 2, None]
    assert [engine.kv for engine in app.engines] == ["auto", "auto", "tiered", "tiered"]


async def test_what_is_no_number_of_layers_tells_how_it_is(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await loaded(pilot)
        await say(pilot, "/place")
        await until(pilot, lambda: "Asked for: as many layers as fit. Now: all on cpu." in said(pilot))
        await say(pilot, "/place -3")
        await until(pilot, lambda: "-3 is not a number of layers." in said(pilot))
    assert len(app.engines) == 1
