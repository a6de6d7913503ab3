"""The model menu: what is on this machine, what the catalogue has, or any path or hub name typed in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option
from textual.worker import get_current_worker

from app.model_list import ModelEntry
from app.sanitize import visible
from app.theme import Look, make_look, on_theme
from app.units import format_bytes
from inference.fit import Fit

_LICENCE, _LICENCE_NARROW = 18, 10  # cells
# Names of models have no spaces, so that these serve as ids too.
_HEADS = {True: "On this machine", False: "To fetch"}


class ModelMenu(ModalScreen[str | None]):
    """Returns the name or path of the model chosen, or None.

    `find_fit` tells whether a file fits. That takes a while: another thread asks it, and the lines follow.
    """

    DEFAULT_CSS = """
    ModelMenu { align: center middle; }
    ModelMenu Vertical {
        width: 88; max-width: 96%; height: auto; max-height: 92%;
        padding: 1 1 0 1; border: round $border; background: $background;
        border-title-color: $primary; border-subtitle-color: $foreground 65%;
    }
    ModelMenu OptionList {
        height: auto; max-height: 100%; border: none; background: $background; padding: 0; scrollbar-size-vertical: 1;
        &:focus { border: none; background-tint: $background 0%; }
    }
    ModelMenu OptionList > .option-list--option-disabled { color: $foreground 65%; }
    ModelMenu Input { border: round $border; background: $background; margin-top: 1; }
    ModelMenu Input:focus { border: round $primary; }
    """
    HELP = """# Models

    The models on this machine and those that can be fetched, with whether each fits, its size, context and licence.
    Enter loads the one at the cursor; tab goes to the box for a file or a name on the hub."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f5", "dismiss(None)", "Close", id="models.close"),
    ]

    def __init__(
        self, entries: list[ModelEntry], loaded_path: str, preferred: str, find_fit: Callable[[Path], Fit]
    ) -> None:
        super().__init__()
        self._entries = entries
        self._loaded_path = loaded_path
        self._preferred = preferred
        self._find_fit = find_fit

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Models"
            box.border_subtitle = "enter loads, fetching first if needed · tab to the path · esc closes"
            yield OptionList(id="model-options")
            yield Input(placeholder="a GGUF file, or org/repo on the Hugging Face hub", id="model-path")

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        options.add_options(self._options())
        for index, option in enumerate(options.options):
            if option.id == self._preferred:
                options.highlighted = index
        if options.highlighted is None:
            options.action_first()
        options.focus()
        self._find_fits()
        on_theme(self, self._recolour)

    def _options(self) -> Iterable[Option]:
        for here in (True, False):
            entries = [entry for entry in self._entries if (entry.path is not None) is here]
            if entries:
                yield Option(self._head(here), id=_HEADS[here], disabled=True)
            for entry in entries:
                yield Option(self._line(entry), id=entry.name)

    def _recolour(self) -> None:
        options = self.query_one(OptionList)
        for option in self._options():
            options.replace_option_prompt(str(option.id), option.prompt)

    def _head(self, here: bool) -> Text:
        entries = [entry for entry in self._entries if (entry.path is not None) is here]
        return Text(_HEADS[here] + why_fit_is_unknown(entries), make_look(self.app.theme_variables).muted)

    def _line(self, entry: ModelEntry) -> Text:
        loaded = entry.path is not None and str(entry.path) == self._loaded_path
        width = max(40, min(84, self.app.size.width - 9))
        return entry_line(entry, loaded, make_look(self.app.theme_variables), width)

    @work(thread=True)
    def _find_fits(self) -> None:
        worker = get_current_worker()
        for index, entry in enumerate(self._entries):
            if entry.path is not None and not worker.is_cancelled:
                fit = self._find_fit(entry.path)
                self.app.call_from_thread(self._show_fit, index, fit)

    def _show_fit(self, index: int, fit: Fit) -> None:
        if not self.is_attached:
            return
        entry = self._entries[index] = replace(self._entries[index], fit=fit)
        options = self.query_one(OptionList)
        options.replace_option_prompt(entry.name, self._line(entry))
        options.replace_option_prompt(_HEADS[True], self._head(True))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.dismiss(event.value.strip())


def fit_words(fit: Fit, look: Look) -> Text:
    """Whether the model fits and what it needs, in a few words; empty where nothing is known."""
    if fit.problem:
        return Text("  too large for a buffer of the device", look.warning)
    if fit.needed is None:
        return Text()
    if fit.available is None:
        return Text(f"  needs {format_bytes(fit.needed)}", look.muted)
    if fit.fits:
        return Text(f"  fits, {format_bytes(fit.needed)}", look.success)
    return Text(f"  too large: {format_bytes(fit.needed)} of {format_bytes(fit.available)}", look.warning)


def why_fit_is_unknown(entries: Sequence[ModelEntry]) -> str:
    """For the head of a list: "" where it is known of any whether it fits, or soon will be."""
    if any(entry.fit.fits is not None for entry in entries):
        return ""
    if any(entry.fit.needed is not None for entry in entries):
        return " · whether they fit is unknown: WebGPU does not tell the memory"
    return " · whether they fit is unknown before a device is chosen" if entries[0].path is None else ""


def entry_line(entry: ModelEntry, loaded: bool, look: Look, width: int) -> Text:
    """One line of the menu: name and whether it fits, then size, context and licence in columns."""
    tail = f"{format_bytes(entry.bytes):>10}"
    if width > 60:
        context = f"{entry.context // 1024}K" if entry.context else ""
        licence = Text(entry.license)
        licence.truncate(_LICENCE if width > 80 else _LICENCE_NARROW, overflow="ellipsis", pad=True)
        tail += f"{context:>6}  {licence.plain}"
    title = visible(entry.title)
    note = "  loaded" if loaded else "  start here" if entry.starter else ""
    line = Text.assemble("  ", (title, Style(bold=loaded)), (note, look.success if loaded else look.accent))
    line.append_text(fit_words(entry.fit, look))
    line.truncate(width - len(tail), overflow="ellipsis", pad=True)
    return line + Text(tail, look.muted)
