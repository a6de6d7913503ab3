"""`/twin`: turns in two lanes, what they differ in, and what becomes of the two replies."""

from __future__ import annotations

from dataclasses import replace

from app.engine_events import Command, Failed, ManyEvent
from app.sanitize import visible
from app.screens.lora_control import LoraControl
from app.screens.model_control import ModelControl
from app.screens.side_replies import ChatParts, SideReplies
from app.screens.twin import TwinScreen
from app.twin_command import DIFFERENCES, UnclearTwin, parse_twin
from app.twin_engine import GapEvent, GenerateTwin, SetTwin, TwinSet
from app.twin_gap import TwinGap
from app.twin_lane import Lane, LaneHeading
from inference.events import Finished, Stats


class TwinControl(SideReplies[Lane]):
    """Asks for the second lane and for the replies in both, and shows how far they are apart."""

    def __init__(self, chat: ChatParts, model: ModelControl, loras: LoraControl) -> None:
        super().__init__(chat)
        chat.conversation.ask_otherwise = self._ask
        self._model = model
        self._loras = loras
        self._gap = TwinGap()
        self._set: TwinSet | None = None

    @property
    def on(self) -> bool:
        """Whether turns have a second lane."""
        return self._set is not None

    def run(self, argument: str) -> None:
        """Do what follows `/twin`: open another second lane, end it with `off`, or tell of it."""
        if not argument or (argument == "off" and not self.on):
            self._tell()
        elif not self._conversation.can_ask("Then /twin."):
            pass
        elif argument == "off":
            self._one_lane()
            self._engine.submit(SetTwin(None))
        else:
            try:
                changes = parse_twin(argument, self._loras.applied)
            except UnclearTwin as error:
                self._hint(str(error))
                return
            # No message goes out before it is clear how many lanes answer it.
            self._model.loading = True
            self._status.change(state="opening a second lane", busy=True)
            self._engine.submit(SetTwin(changes))

    def on_set(self, event: TwinSet) -> None:
        """There is another second lane, or none any more."""
        if event.changes is None:
            if self.on:
                self._one_lane()
            return
        self._set = event
        self._opened()
        assert event.info is not None
        self._tell()
        if event.own:
            again = "is loaded a second time for it" if not event.changes.model else "is loaded beside the chat's model"
            self._note(f"{event.info.model} {again}, on {event.info.device} in {event.info.dtype}.", "notice")

    def on_set_failed(self, event: Failed) -> None:
        """There is no second lane."""
        self._opened()
        self._note(event.message, "notice" if event.cancelled else "error")

    def on_gap(self, event: GapEvent) -> None:
        """How far the lanes are apart at one more token."""
        if event.number == self._number:
            self._gap.take(event.event)

    def on_event(self, wrapped: ManyEvent) -> None:
        """One event of one lane."""
        if wrapped.number == self._number and self._conversation.lent:
            match wrapped.event:
                case Stats(kv=kv) as stats:
                    self._candidates[wrapped.index].measure(stats)
                    if wrapped.index == 0:  # the chat's own sequence
                        self._status.change(tokens=kv.tokens, context=kv.context)
                case Finished(timings=timings):
                    self._candidates[wrapped.index].measure(timings)
        super().on_event(wrapped)
        if isinstance(wrapped.event, Finished) and not self._writing:
            self._status.change(state="ready", busy=False)

    def _one_lane(self) -> None:
        self._set = None
        self._note("Twin lanes are off: each message has one answer again.", "notice")

    def _opened(self) -> None:
        self._model.loading = False
        self._status.change(state="ready", busy=False)

    def _tell(self) -> None:
        if self._set is not None and self._set.changes is not None:
            words = visible(self._set.changes.words)
            self._note(
                f"Twin lanes are on: {words}. Each message is answered twice, side by side: on the left as the chat "
                "is, on the right with that. /twin off ends it.",
                "notice",
            )
        else:
            what = "\n".join(f"{name}: {each}" for name, each in DIFFERENCES.items())
            self._note(
                "Twin lanes are off. /twin NAME=VALUE ..., such as /twin kv=tiered-int4, has each message answered "
                f"twice, side by side; the second reply has:\n{what}",
                "notice",
            )

    def _ask(self, question: int) -> bool:
        """Answer a question in both lanes; False if there is only one."""
        if self._set is None or self._set.changes is None or self._model.loaded is None or self._set.info is None:
            return False
        conversation, loaded, changes, info = self._conversation, self._model.loaded, self._set.changes, self._set.info
        second = replace(conversation.sampling, **changes.sampling)
        other = {"twin": changes.words} | ({"kv": changes.kv} if changes.kv else {})
        answers = (
            conversation.new_answer(question, conversation.sampling),
            conversation.new_answer(question, second, title=info.model, other=other),
        )
        headings = (
            LaneHeading(visible(loaded.title), f"kv {loaded.kv.layout} · {loaded.info.dtype} · {loaded.info.device}"),
            LaneHeading(
                visible(info.model),
                f"kv {self._set.layout} · {info.dtype} · {info.device}",
                visible(changes.words),
                shares=not self._set.own,
            ),
        )
        self._gap = TwinGap()
        self._begin(
            question, [Lane(index + 1, *each) for index, each in enumerate(zip(answers, headings, strict=True))]
        )
        return True

    def _command(self, messages: tuple[dict[str, str], ...]) -> Command:
        return GenerateTwin(self._number, messages, self._conversation.sampling, self._conversation.max_tokens)

    def _make_screen(self, question: str) -> TwinScreen:
        return TwinScreen(question, self._candidates, self._gap, self._keep, self._leave)
