"""What the sidebar and a chosen message look like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from app.widgets.conversation_list import ConversationList
from tests.app.conftest import MadeApp
from tests.app.scripted_engine import Script
from tests.app.test_chat import answered, chat, loaded, say, until
from tests.app.test_history import fill

TITLES = (
    "Why are there two tides a day, and not one?",
    "A poem about the harbour",
    "東京からの電車と港の歴史について教えてください",
    "Python: read a CSV file",
)


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
def test_sidebar(
    snap_compare: Any,
    make_app: Callable[..., MadeApp],
    steady: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    size: Any,
) -> None:
    async def run_before(pilot: Pilot[None]) -> None:
        await loaded(pilot)
        await say(pilot, "hello")
        await answered(pilot)
        await say(pilot, "/retry")
        await until(pilot, lambda: "< 2/2 >" in chat(pilot).query_one("#transcript").text)  # type: ignore[attr-defined]
        await answered(pilot)
        await pilot.press("alt+up", "f8")
        rows = chat(pilot).query_one(ConversationList)
        await until(pilot, lambda: len(rows.hits) == 5)
        await pilot.pause(0.3)

    monkeypatch.setattr("app.widgets.conversation_list.when", lambda moment, now: "Monday 12:30")
    fill(tmp_path / "history.db", *TITLES)
    app = make_app(Script(pieces=("A **reply**.",)), history=tmp_path / "history.db")
    assert snap_compare(app, terminal_size=size, run_before=run_before)
