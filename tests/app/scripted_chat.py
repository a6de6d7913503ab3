"""The chat over a scripted engine as a program of its own: `python -m tests.app.scripted_chat FOLDER [--continue]`."""

from __future__ import annotations

import sys
from pathlib import Path

from app.chat_app import ChatApp
from app.engine_thread import EngineThread
from app.settings import Sources
from app.start import Start
from app.store.store import Store
from tests.app.conftest import FIT
from tests.app.scripted_engine import Script, opener, resolve, resolve_adapter


def main(folder: Path, resume: bool) -> None:
    """Talk, with a history in `folder`; replies count, n0, n1 ..., 300 a second."""
    open_engine, _ = opener(Script(pieces=tuple(f"n{number} " for number in range(100_000)), tokens_per_s=300))
    engine, store = EngineThread(resolve, open_engine, resolve_adapter), Store(folder / "history.db")
    sources = Sources(folder / "settings.toml", {"theme": "glass"})
    ChatApp(engine, store, lambda device: [], lambda path, device: FIT, sources, Start("m", resume=resume)).run()
    store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["--continue"])
