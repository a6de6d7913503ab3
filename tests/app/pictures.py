"""Pictures of the running application, compared with those that are kept, in both sizes and both themes.

`pytest --snapshot-update` after a change that was meant.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from pytest_textual_snapshot import SVGImageExtension, normalize_svg  # type: ignore[import-untyped]
from syrupy.assertion import SnapshotAssertion
from textual.pilot import Pilot

LARGE, SMALL = (120, 40), (80, 24)
THEMES = ("glass", "glass-light")
_SAME = 3  # pictures in succession, before one counts
_PAUSE_S = 0.025
_PATIENCE_S = 3.0


class Pictures:
    """Takes pictures of an application as it runs. Those that differ are in `different`, and left in `folder`."""

    def __init__(self, snapshot: SnapshotAssertion, folder: Path) -> None:
        self._snapshot = snapshot.use_extension(SVGImageExtension)
        self._folder = folder
        self.different: list[str] = []

    async def take(self, pilot: Pilot[None], name: str, sizes: Iterable[tuple[int, int]] = (LARGE, SMALL)) -> None:
        """Compare what is on the screen now, in these sizes and in each theme."""
        for width, height in sizes:
            if pilot.app.size != (width, height):
                await pilot.resize_terminal(width, height)
            for theme in THEMES:
                pilot.app.theme = theme
                picture = f"{name}-{width}x{height}-{theme}"
                svg = await self._picture(pilot, picture)
                if self._snapshot(name=picture) != svg:
                    self.different.append(picture)
                    (self._folder / f"{picture}.svg").write_text(svg)

    async def _picture(self, pilot: Pilot[None], picture: str) -> str:
        """The screen at rest, as it is kept if it comes to look so in a few seconds: a busy machine is slow."""
        location = self._snapshot.extension.get_location(test_location=self._snapshot.test_location, index=picture)
        kept = "" if self._snapshot.update_snapshots or not Path(location).exists() else Path(location).read_text()
        end = time.monotonic() + _PATIENCE_S
        while True:
            svg = await _steady(pilot)
            if not kept or normalize_svg(svg) == normalize_svg(kept) or time.monotonic() > end:
                return svg


async def _steady(pilot: Pilot[None]) -> str:
    """The screen, once nothing on it changes any more."""
    seen: list[str] = []
    while len(seen) < 200:
        await pilot.pause(_PAUSE_S)
        seen.append(pilot.app.export_screenshot(simplify=True))
        if len(set(seen[-_SAME:])) == 1 and len(seen) >= _SAME:
            return seen[-1]
    raise AssertionError("the screen never rests")
