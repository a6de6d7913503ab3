"""LoRA adapters in the chat: what `/lora` and the panel ask of the engine, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine_events import ChangeLoras, Failed, LorasChanged
from app.engine_thread import EngineThread
from app.lora_command import Strengths, UnclearLora, parse_lora
from app.notes import adapters_note
from app.panels.lora_cost import LoraCost
from app.panels.lora_panel import LoraPanel
from app.screens.adapter_picker import AdapterPicker
from app.widgets.render import NoteKind

if TYPE_CHECKING:
    from inference.lora.adapter_set import AppliedAdapter
    from inference.plan.explain import PlanRow


class LoraControl:
    """The adapters in use, as far as the engine has told. They go over to the next model, where they fit it.

    `start` is what the first model gets; `note` writes in the transcript, `hint` shows a passing message, `replying`
    tells whether a reply is being written.
    """

    def __init__(
        self,
        engine: EngineThread,
        note: Callable[[str, NoteKind], None],
        hint: Callable[[str], None],
        replying: Callable[[], bool],
        start: Strengths,
    ) -> None:
        self.panel = LoraPanel(self.change, self._add)
        self._engine = engine
        self._note = note
        self._hint = hint
        self._replying = replying
        self._for_next_model = start
        self._asked = 0
        self._decode: tuple[PlanRow, ...] = ()
        self._rates: dict[tuple[str, ...], float] = {}
        self.applied: tuple[AppliedAdapter, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether the engine has yet to answer."""
        return self._asked > 0

    def run(self, argument: str) -> None:
        """Do what follows `/lora`."""
        try:
            self.change(parse_lora(argument, self.applied))
        except UnclearLora as error:
            self._hint(str(error))

    def change(self, strengths: Strengths) -> None:
        """Ask the engine for other strengths. It hears of them after the reply that is being written."""
        if self._replying():
            self._hint("A reply is being written; the adapters change with the next one.")
        self._asked += 1
        self._engine.submit(ChangeLoras(strengths))

    def on_loaded(self, decode: tuple[PlanRow, ...]) -> None:
        """A model is ready, without adapters."""
        self._decode = decode
        strengths, self._for_next_model = self._for_next_model, ()
        if strengths:
            self.change(strengths)

    def on_unloaded(self) -> None:
        """The model is gone, and its adapters with it."""
        self._for_next_model = tuple((str(each.adapter.path), each.strength) for each in self.applied)
        self.applied, self._decode, self._rates = (), (), {}
        self.panel.show_adapters((), LoraCost())

    def on_changed(self, event: LorasChanged) -> None:
        """Show the adapters in use. A strength that the panel shows need not be told besides."""
        self._asked -= 1
        others = _paths(event.adapters) != _paths(self.applied)
        self.applied, self._decode = event.adapters, event.decode
        self.panel.show_adapters(self.applied, self._cost())
        if others or not self.panel.display:
            self._note(adapters_note(self.applied, bool(event.kv.tokens)), "notice")

    def on_failed(self, event: Failed) -> None:
        """Nothing has changed; say why."""
        self._asked -= 1
        self.panel.show_adapters(self.applied, self._cost())
        self._note(event.message, "notice" if event.cancelled else "error")

    def on_reply(self, tokens_per_s: float) -> None:
        """A reply was written at this speed, 0 where it was too short to tell."""
        if tokens_per_s:
            self._rates[_paths(self.applied)] = tokens_per_s
            self.panel.show_cost(self._cost())

    def _add(self) -> None:
        def chosen(name: str | None) -> None:
            if name:
                self.run(name)

        self.panel.app.push_screen(AdapterPicker(Path.cwd()), chosen)

    def _cost(self) -> LoraCost:
        return LoraCost(self._rates.get(_paths(self.applied)), self._rates.get(()), self._decode)


def _paths(adapters: tuple[AppliedAdapter, ...]) -> tuple[str, ...]:
    return tuple(str(each.adapter.path) for each in adapters)
