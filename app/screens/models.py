"""The model menu: what is on this machine, what the catalogue has, or any path or hub name typed in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from app.model_list import ModelEntry
from app.sanitize import visible
from app.theme import Look, make_look
from app.units import format_bytes
from inference.fit import Fit

_LICENCE, _LICENCE_NARROW = 18, 10  # cells


class ModelMenu(ModalScreen[str | None]):
    """Returns the name or path of the model chosen, or None."""

    DEFAULT_CSS = """
    ModelMenu { align: center middle; }
    ModelMenu Vertical {
        width: 88; max-width: 96%; height: auto; max-height: 92%;
        padding: 1 1 0 1; border: round $border; background: $background;
        border-title-color: $primary; border-subtitle-color: $foreground 55%;
    }
    ModelMenu OptionList {
        height: auto; max-height: 100%; border: none; background: $background; padding: 0; scrollbar-size-vertical: 1;
        &:focus { border: none; background-tint: $background 0%; }
    }
    ModelMenu OptionList > .option-list--option-disabled { color: $foreground 55%; }
    ModelMenu Input { border: round $border; background: $background; margin-top: 1; }
    ModelMenu Input:focus { border: round $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f5", "dismiss(None)", "Close", id="models.close"),
    ]

    def __init__(self, entries: list[ModelEntry], loaded_path: str, preferred: str) -> None:
        super().__init__()
        self._entries = entries
        self._loaded_path = loaded_path
        self._preferred = preferred

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

    def _options(self) -> Iterable[Option]:
        look = make_look(self.app.theme_variables)
        for title, here in (("On this machine", True), ("To fetch", False)):
            entries = [entry for entry in self._entries if (entry.path is not None) is here]
            if entries:
                yield Option(Text(title + why_fit_is_unknown(entries), look.muted), disabled=True)
            for entry in entries:
                loaded = here and str(entry.path) == self._loaded_path
                yield Option(entry_line(entry, loaded, look, max(40, min(84, self.app.size.width - 9))), id=entry.name)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.dismiss(event.value.strip())


def fit_words(fit: Fit, look: Look) -> Text:
    """Whether the model fits, in a few words; empty where that is not known."""
    if fit.needed is None or fit.available is None:
        return Text()
    if fit.fits:
        return Text("  fits", look.success)
    return Text(f"  too large: {format_bytes(fit.needed)} of {format_bytes(fit.available)}", look.warning)


def why_fit_is_unknown(entries: Sequence[ModelEntry]) -> str:
    """For the head of a list: "" where it is known of any whether it fits."""
    if any(entry.fit.fits is not None for entry in entries):
        return ""
    if all(entry.fit.needed is None for entry in entries):
        return " · whether they fit is unknown before a device is chosen"
    return " · whether they fit is unknown: WebGPU does not tell the memory"


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
