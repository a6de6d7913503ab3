"""Make the pictures in docs: the real app, a real model, and its panels.

python tools/screenshot.py [MODEL] [--device webgpu]
"""

import argparse
import asyncio
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from app.chat_app import ChatApp
from app.engine_thread import EngineThread
from app.fit_report import FitFinder
from app.model_list import model_entries, resolve_adapter, resolve_usable_model
from app.options import EngineOptions
from app.settings import Sources
from app.start import Start
from app.store.store import Store
from app.widgets.status_bar import StatusBar
from inference import Engine
from inference.catalog import load_catalog
from inference.hub import default_store

DOCS = Path(__file__).parent.parent / "docs"
LORA = Path(__file__).parent.parent / "assets" / "demo-lora"


@dataclass(frozen=True)
class Picture:
    """What is typed and sent, and the keys pressed then, for a picture of that name, or none; what was opened stays."""

    name: str
    typed: str = ""
    keys: tuple[str, ...] = ()


PICTURES = (
    Picture("", "Give me three tips for better sleep."),
    Picture("screenshot.svg", keys=("f2", "f3")),
    Picture("kernels-and-tokens.svg", keys=("f2", "f3", "f7", "k", "f7", "t")),
    Picture("timing-and-kv.svg", keys=("f7", "k", "f7", "t", "f7", "s", "f4")),
    Picture("", keys=("f7", "s", "f4")),
    Picture("", "/twin kv=tiered-int4"),
    Picture("twin.svg", "Which of them helps most, and why?"),
    Picture("", keys=("left",)),
    Picture("", "/twin off"),
    Picture("", "/new"),
    Picture("", f"/lora {LORA}=0.5"),
    Picture("prompt-and-lora.svg", "Why is the sky blue?", ("f7", "p", "f6")),
    Picture("", keys=("f7", "p", "f6", "alt+e")),
    Picture("history.svg", " In one sentence.", ("f8",)),
    Picture("settings.svg", keys=("f8", "f9")),
    Picture("models.svg", keys=("escape", "f5")),
)


async def take(model: str, device: Literal["auto", "webgpu", "cpu"]) -> dict[str, str]:
    """The screens as SVG by their file's name."""
    catalog, store = load_catalog(), default_store()
    engine = EngineThread(
        partial(resolve_usable_model, catalog=catalog, store=store),
        lambda path, kv, progress, **more: Engine.open(path, device=device, kv=kv, progress=progress, **more),
        partial(resolve_adapter, store=store),
    )
    start = Start(model or catalog.starter)
    with tempfile.TemporaryDirectory() as folder:
        list_models, find_fit = partial(model_entries, catalog, store), FitFinder(EngineOptions(device=device))
        settings = {"theme": "glass", "temperature": 0.0, "max_tokens": 200}
        sources = Sources(Path(folder) / "settings.toml", settings)
        app = ChatApp(engine, Store(Path(folder) / "history.db"), list_models, find_fit, sources, start)
        async with app.run_test(size=(120, 44)) as pilot:

            async def settle() -> None:
                await pilot.pause(1)
                while app.screen_stack[0].query_one(StatusBar).status.busy:
                    await pilot.pause(0.5)

            await settle()
            pictures = {}
            for picture in PICTURES:
                if picture.typed:
                    await pilot.press(*("space" if letter == " " else letter for letter in picture.typed), "enter")
                    await settle()
                for key in picture.keys:
                    await pilot.press(key)
                    await pilot.pause(0.5)
                await pilot.pause(2)
                if picture.name:
                    pictures[picture.name] = app.export_screenshot()
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
