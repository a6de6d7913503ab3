"""Pictures of the running application, compared with those that are kept, in both sizes and both themes.

`pytest --snapshot-update` after a change that was meant.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pytest_textual_snapshot import SVGImageExtension
from syrupy.assertion import SnapshotAssertion
from textual.pilot import Pilot

LARGE, SMALL = (120, 40), (80, 24)
THEMES = ("glass", "glass-light")
_SAME = 3  # pictures in succession, before one counts
_PAUSE_S = 0.025


class Pictures:
    """Takes pictures of an application as it runs, and leaves those that differ in `folder`."""

    def __init__(self, snapshot: SnapshotAssertion, folder: Path) -> None:
        self._snapshot = snapshot.use_extension(SVGImageExtension)
        self._folder = folder

    async def take(self, pilot: Pilot[None], name: str, sizes: Iterable[tuple[int, int]] = (LARGE, SMALL)) -> None:
        """Compare what is on the screen now, in these sizes and in each theme."""
        different = []
        for width, height in sizes:
            if pilot.app.size != (width, height):
                await pilot.resize_terminal(width, height)
            for theme in THEMES:
                pilot.app.theme = theme
                svg = await _steady(pilot)
                picture = f"{name}-{width}x{height}-{theme}"
                if self._snapshot(name=picture) != svg:
                    different.append(picture)
                    (self._folder / f"{picture}.svg").write_text(svg)
        assert not different, f"{', '.join(different)}: not as kept; what is seen is in {self._folder}"


async def _steady(pilot: Pilot[None]) -> str:
    """The screen, once nothing on it changes any more."""
    seen: list[str] = []
    while len(seen) < 200:
        await pilot.pause(_PAUSE_S)
        seen.append(pilot.app.export_screenshot(simplify=True))
        if len(set(seen[-_SAME:])) == 1 and len(seen) >= _SAME:
            return seen[-1]
    raise AssertionError("the screen never rests")
