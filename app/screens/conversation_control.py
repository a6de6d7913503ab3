"""The conversation on the screen: what the person sends, and what becomes of the engine's events for a reply."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from app.conversation import Answer, Conversation
from app.engine_thread import EngineThread, Failed, Generate, ReplyEvent, ReplyStarted
from app.notes import dropped_note, figures_line, full_context_note
from app.screens.lora_control import LoraControl
from app.screens.model_control import ModelControl
from app.start import Start
from app.widgets.render import NoteKind
from app.widgets.status_bar import StatusBar
from app.widgets.transcript import Transcript
from inference.events import Finished, Notice, Prefill, Stats, Token

_FIGURES_PERIOD_S = {"full": 0.5, "basic": 0.5, "none": 2.0}  # by animation level; each change is a repaint


class ConversationControl:
    """Sends messages to the engine and brings replies into the transcript.

    `note` writes in the transcript, `hint` shows a passing message, `show_stats` is given new figures of a reply, from
    time to time. `sampling` and `max_tokens` are those of the next reply.
    """

    def __init__(
        self,
        engine: EngineThread,
        transcript: Transcript,
        status: StatusBar,
        model: ModelControl,
        loras: LoraControl,
        note: Callable[[str, NoteKind], None],
        hint: Callable[[str], None],
        show_stats: Callable[[Stats], None],
        start: Start,
    ) -> None:
        self._engine = engine
        self._transcript = transcript
        self._status = status
        self._model = model
        self._loras = loras
        self._note = note
        self._hint = hint
        self._give_stats = show_stats
        self.sampling = start.sampling
        self.max_tokens = start.max_tokens
        self._conversation = Conversation(start.system)
        self._answer: Answer | None = None
        self._replies = 0
        self._stats: Stats | None = None
        self._stats_shown = 0.0

    @property
    def answering(self) -> bool:
        """Whether the engine has a reply to write."""
        return self._answer is not None

    @property
    def busy(self) -> bool:
        """Whether a reply is being written, or is not on the screen yet."""
        return self._answer is not None or self._transcript.writing

    @property
    def begun(self) -> bool:
        """Whether anything was said."""
        return bool(self._conversation.turns)

    @property
    def messages(self) -> tuple[dict[str, str], ...]:
        """The conversation as a model gets it."""
        return self._conversation.messages()

    # What the person does

    def send(self, text: str) -> bool:
        """Send a message; False leaves it in the prompt, and says why."""
        if self._model.loading:
            self._hint("The model is still loading. Your message stays in the box.")
        elif self._model.loaded is None:
            self._hint("No model is loaded: F5 opens the menu. Your message stays in the box.")
        elif self.busy:
            self._hint("A reply is being written; Esc stops it. Your message stays in the box.")
        else:
            self._transcript.add("user", text)
            self._conversation = self._conversation.with_question(text)
            self._begin_reply(self._model.loaded.title)
            return True
        return False

    def _begin_reply(self, name: str) -> None:
        self._replies += 1
        self._answer = Answer(self._replies)
        self._transcript.begin_reply(name)
        messages = self._conversation.messages()
        self._engine.submit(Generate(self._replies, messages, self.sampling, self.max_tokens))
        self._status.change(state="reading", busy=True, rate=0.0)

    def stop(self) -> None:
        """Mark the reply that is being written as stopped; the engine is told by the caller."""
        if self._answer is not None:
            self._answer.stopped = True
            self._status.change(state="stopping")

    def set_system(self, text: str) -> None:
        """Set the system prompt; without text, show it."""
        if text:
            self._conversation = replace(self._conversation, system=text)
            self._note("The system prompt is set for what follows.", "notice")
        else:
            system = self._conversation.system
            self._note(f"System prompt: {system}" if system else "There is no system prompt.", "notice")

    def drop(self, count: str) -> None:
        """Leave out the oldest questions and their replies, so many of them."""
        if self.busy:
            self._hint("A reply is being written; Esc stops it, then /drop.")
        elif count and (not count.isdecimal() or int(count) == 0):
            self._hint(f"/drop takes a number of questions, not {count}.")
        else:
            self._conversation, dropped = self._conversation.without_oldest(int(count or 1))
            self._note(dropped_note(dropped), "notice")

    def clear(self) -> None:
        """Start over with an empty conversation."""
        if self.busy:
            self._hint("A reply is being written; Esc stops it, then /clear.")
            return
        self._conversation = replace(self._conversation, turns=())
        self._transcript.clear()
        self._note("A new conversation.", "notice")

    def last_answer(self) -> str | None:
        """The newest reply, raw but without its thought; None where there is no reply yet."""
        return self._conversation.last_answer()

    # What the engine says

    def show(self) -> None:
        """Show what has come of the reply since the last call."""
        if self._answer is not None:
            self._show(self._answer)

    def _show(self, answer: Answer) -> None:
        thought, text = answer.release()
        if thought:
            self._transcript.think(thought, answer.thought_tokens, answer.thought_s)
        self._transcript.feed(text)

    def on_event(self, wrapped: ReplyEvent) -> None:
        """One event of a reply."""
        event, answer = wrapped.event, self._answer
        if answer is None or answer.number != wrapped.reply:
            return
        match event:
            case ReplyStarted():
                answer.begin(event.marks, event.thinking)
            case Token():
                # A token sampled before the engine heard of the stop is not shown; held-back text (id -1) is.
                if not (answer.stopped and event.id >= 0):
                    answer.take(event)
            case Prefill():
                done = event.done < event.total
                self._status.change(state=f"reading {event.done}/{event.total}" if done else "writing")
            case Stats():
                self._stats = event
                if time.monotonic() - self._stats_shown > _FIGURES_PERIOD_S[self._status.app.animation_level]:
                    self._show_stats()
            case Notice():
                self._note(event.text, "notice")
            case Finished():
                self._finish(answer, figures_line(event.reason, event.timings, self._loras.applied))
                if event.reason == "context":
                    self._note(full_context_note(self._conversation, self._status.status.context), "notice")
                self._status.change(rate=event.timings.decode_tps)
                self._loras.on_reply(event.timings.decode_tps)

    def _show_stats(self) -> None:
        if (stats := self._stats) is not None:
            self._stats, self._stats_shown = None, time.monotonic()
            self._give_stats(stats)
            self._status.change(rate=stats.timings.decode_tps, tokens=stats.kv.tokens, context=stats.kv.context)

    def _finish(self, answer: Answer, figures: str) -> None:
        answer.end()
        self._show(answer)
        self._answer = None
        self._conversation = self._conversation.with_reply(answer.raw, answer.answer)
        self._note(figures, "figures")
        self._transcript.end_reply(None)
        self._show_stats()
        self._status.change(state="ready", busy=False)

    def on_failed(self, event: Failed, reply: int) -> None:
        """A reply was stopped before its end, or broken off; what there is of it stays."""
        answer = self._answer
        if answer is None or answer.number != reply:
            return
        if answer.raw:
            self._finish(answer, "stopped" if event.cancelled else "broken off")
        else:
            self._answer = None
            self._conversation = self._conversation.without_last()
            self._transcript.end_reply(None)
            self._status.change(state="ready", busy=False)
            self._note("No reply; the message is not part of the conversation.", "notice")
        if not event.cancelled:
            self._note(event.message, "error")
