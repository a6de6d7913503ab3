"""Make the pictures in docs: the real app, a real model, and its panels.

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
from app.store.store import Store
from app.widgets.status_bar import StatusBar
from inference import Engine, Sampling
from inference.catalog import load_catalog
from inference.hub import default_store

DOCS = Path(__file__).parent.parent / "docs"
# Keys that open the panels of each picture, those of the one before being open.
PICTURES = {
    "screenshot.svg": ("f2", "f3"),
    "kernels-and-tokens.svg": ("f2", "f3", "f7", "k", "f7", "t"),
    "timing-and-kv.svg": ("f7", "k", "f7", "t", "f7", "s", "f4"),
}
QUESTION = "Give me three tips for better sleep."


async def take(model: str, device: str) -> dict[str, str]:
    """The screens as SVG by their file's name, after one question and with panels open."""
    catalog, store = load_catalog(), default_store()
    engine = EngineThread(
        partial(resolve_usable_model, catalog=catalog, store=store),
        lambda path, kv, progress: Engine.open(path, device=device, kv=kv, progress=progress),
        partial(resolve_adapter, store=store),
    )
    start = Start(model or catalog.starter, Sampling(temperature=0), max_tokens=200)
    with tempfile.TemporaryDirectory() as folder:
        list_models, find_fit = partial(model_entries, catalog, store), FitFinder(EngineOptions(device=device))
        sources = Sources(Path(folder) / "settings.toml", {"theme": "glass"})
        app = ChatApp(engine, Store(None), list_models, find_fit, sources, start)
        async with app.run_test(size=(120, 44)) as pilot:

            async def settle() -> None:
                await pilot.pause(1)
                while app.screen.query_one(StatusBar).status.busy:
                    await pilot.pause(0.5)

            await settle()
            await pilot.press(*("space" if letter == " " else letter for letter in QUESTION), "enter")
            await settle()
            pictures = {}
            for name, keys in PICTURES.items():
                for key in keys:
                    await pilot.press(key)
                    await pilot.pause(0.5)
                await pilot.pause(2)
                pictures[name] = app.export_screenshot()
            return pictures


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the pictures in docs.")
    parser.add_argument("model", nargs="?", default="", help="a name or a GGUF file (default: the starter)")
    parser.add_argument("--device", choices=("auto", "webgpu", "cpu"), default="auto")
    given = parser.parse_args()
    for name, picture in asyncio.run(take(given.model, given.device)).items():
        (DOCS / name).write_text(picture, encoding="utf-8")
        print(DOCS / name)


if __name__ == "__main__":
    main()
