"""Fixtures of the interface's tests: the app over a scripted engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from app.chat_app import ChatApp
from app.engine_thread import EngineThread
from app.model_list import ModelEntry
from app.settings import Sources
from app.start import Start
from app.store.store import Store
from inference.events import Timings
from inference.fit import Fit
from tests.app.pictures import Pictures
from tests.app.scripted_engine import Script, ScriptedEngine, opener, resolve, resolve_adapter

ENTRIES = [
    ModelEntry(
        "smollm2-135m-instruct",
        "SmolLM2 135M Instruct",
        98 << 20,
        Path("/models/smollm2"),
        8192,
        "Apache-2.0",
    ),
    ModelEntry("gemma-3-270m-it", "Gemma 3 270M", 265 << 20, None, 32768, "Gemma", starter=True),
]
FIT = Fit(600 << 20, 8 << 30)
"""Whatever file is asked about."""


class MadeApp(ChatApp):
    """The app, and the engines that it opened."""

    engines: list[ScriptedEngine]
    settings_file: Path
    store: Store


def without_size(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program in a terminal of its own: what says how large another one is would count more."""
    return {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}


@pytest.fixture(autouse=True)
def no_clipboard_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clipboard of whoever runs the tests stays as it is."""
    monkeypatch.setattr("app.clipboard.PROGRAMS", ())


@pytest.fixture
def make_app(tmp_path: Path) -> Callable[..., MadeApp]:
    """`make_app(Script(...), ..., model=...)`: the app, playing one script for each model loaded."""

    def make(
        *scripts: Script,
        model: str = "first",
        settings: dict[str, Any] | None = None,
        history: Path | None = None,
        **begin: Any,
    ) -> MadeApp:
        open_engine, engines = opener(*(scripts or (Script(),)))
        settings_file = tmp_path / "settings.toml"
        # Whatever terminal the tests run in.
        given = {"theme": "glass"} | (settings or {})
        start = Start(model=model, **begin)
        thread = EngineThread(resolve, open_engine, resolve_adapter)
        store = Store(history)
        app = MadeApp(
            thread, store, lambda device: list(ENTRIES), lambda path, device: FIT, Sources(settings_file, given), start
        )
        app.engines, app.settings_file, app.store = engines, settings_file, store
        return app

    return make


@pytest.fixture
def pictures(snapshot: SnapshotAssertion, tmp_path: Path) -> Iterator[Pictures]:
    """Compares what the running application looks like with what is kept."""
    taken = Pictures(snapshot, tmp_path)
    yield taken
    assert not taken.different, f"not as kept: {', '.join(taken.different)}; what is seen is in {tmp_path}"


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures that do not depend on the clock, and a cursor that does not blink."""
    timings = Timings(0.5, 0.01, 1000.0, 1.0, 61.3, 0.12, 31, 12, 180)
    monkeypatch.setattr(ScriptedEngine, "_timings", lambda *_: timings)
    monkeypatch.setattr("textual.widgets.TextArea.cursor_blink", False)
    monkeypatch.setattr("textual.widgets.Input.cursor_blink", False)
