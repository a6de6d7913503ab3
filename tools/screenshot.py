"""Make docs/screenshot.svg: the real app, a real model and both panels.

python tools/screenshot.py [MODEL] [--device webgpu]
"""

import argparse
import asyncio
import tempfile
from functools import partial
from pathlib import Path

from app.chat_app import ChatApp
from app.engine_thread import EngineThread
from app.fit_report import FitFinder
from app.model_list import model_entries, resolve_adapter, resolve_usable_model
from app.options import EngineOptions
from app.settings import Sources
from app.start import Start
from app.widgets.status_bar import StatusBar
from inference import Engine, Sampling
from inference.catalog import load_catalog
from inference.hub import default_store

TARGET = Path(__file__).parent.parent / "docs" / "screenshot.svg"
QUESTION = "Give me three tips for better sleep."


async def take(model: str, device: str) -> str:
    """The screen as SVG, after one question and with the panels open."""
    catalog, store = load_catalog(), default_store()
    engine = EngineThread(
        partial(resolve_usable_model, catalog=catalog, store=store),
        lambda path, kv, progress: Engine.open(path, device=device, kv=kv, progress=progress),
        partial(resolve_adapter, store=store),
    )
    start = Start(model or catalog.starter, Sampling(temperature=0), max_tokens=200)
    with tempfile.TemporaryDirectory() as folder:
        list_models, find_fit = partial(model_entries, catalog, store), FitFinder(EngineOptions(device=device))
        app = ChatApp(engine, list_models, find_fit, Sources(Path(folder) / "settings.toml", {"theme": "glass"}), start)
        async with app.run_test(size=(120, 44)) as pilot:

            async def settle() -> None:
                await pilot.pause(1)
                while app.screen.query_one(StatusBar).status.busy:
                    await pilot.pause(0.5)

            await settle()
            await pilot.press(*("space" if letter == " " else letter for letter in QUESTION), "enter")
            await settle()
            await pilot.press("f2", "f3")
            await pilot.pause(2)
            return app.export_screenshot()


def main() -> None:
    parser = argparse.ArgumentParser(description="Make docs/screenshot.svg.")
    parser.add_argument("model", nargs="?", default="", help="a name or a GGUF file (default: the starter)")
    parser.add_argument("--device", choices=("auto", "webgpu", "cpu"), default="auto")
    given = parser.parse_args()
    TARGET.write_text(asyncio.run(take(given.model, given.device)), encoding="utf-8")
    print(TARGET)


if __name__ == "__main__":
    main()
