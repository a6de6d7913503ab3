"""The conversation on the screen: what the person sends, what comes of the engine's events, and that both are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from app.conversation import Answer, engine_messages, finish_answer, keep_answer, oldest_exchanges
from app.engine_events import Failed, Generate, ReplyEvent, ReplyStarted
from app.engine_thread import EngineThread
from app.notes import CUT_OFF, NO_REPLY, adapter_words, dropped_note, figures_line, full_context_note, reply_name
from app.screens.branch_view import BranchView, place
from app.screens.lora_control import LoraControl
from app.screens.model_control import ModelControl
from app.start import Start
from app.store.records import HistoryError, Message
from app.store.store import Store
from app.store.tree import Tree
from app.widgets.message_items import question_items
from app.widgets.render import NoteKind
from app.widgets.status_bar import StatusBar
from app.widgets.transcript import Transcript
from inference.events import Finished, Notice, Prefill, Stats, Token
from inference.sampling import Sampling

_FIGURES_PERIOD_S = {"full": 0.5, "basic": 0.5, "none": 2.0}  # by animation level; each change is a repaint


class ConversationControl:
    """Sends messages to the engine, brings replies into the transcript, and keeps both in the history.

    `tree` is the conversation with its branches, `view` what the transcript shows of it. `note` writes in the
    transcript, `hint` shows a passing message, `show_stats` is given new figures of a reply, from time to time.
    `sampling` and `max_tokens` are those of the next reply, `system` is the system prompt of a new conversation.
    `lent` says that somebody else adds replies to the tree now; `ask_otherwise` is given each new question, and tells
    whether somebody else asks it.
    """

    def __init__(
        self,
        engine: EngineThread,
        store: Store,
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
        self._store = store
        self._transcript = transcript
        self._status = status
        self._model = model
        self._loras = loras
        self._note = note
        self._hint = hint
        self._give_stats = show_stats
        self.sampling = start.sampling
        self.max_tokens = start.max_tokens
        self.system = start.system
        self.tree = store.new(start.system)
        self.lent = False
        self.ask_otherwise: Callable[[int], bool] = lambda _: False
        self.view = BranchView(store, transcript, lambda text: note(text, "error"))
        self._left_out: set[int] = set()
        self._answer: Answer | None = None
        self._last: int | None = None
        """The reply that was written last: the one whose tokens are shown."""
        self._replies = 0
        self._stats: Stats | None = None
        self._stats_shown = 0.0

    @property
    def answering(self) -> bool:
        """Whether the engine has a reply to write."""
        return self._answer is not None or self.lent

    @property
    def busy(self) -> bool:
        """Whether a reply is being written, or is not on the screen yet."""
        return self.answering or self._transcript.writing

    @property
    def begun(self) -> bool:
        """Whether anything was said."""
        return self.tree.active is not None

    def messages(self, instead_of: int | None) -> tuple[dict[str, str], ...]:
        """What a model would get before the next message, or one `instead_of` another, as far as it is in memory."""
        nodes = self.tree.path(instead_of)
        if nodes and nodes[-1].role == "user":
            nodes = nodes[:-1]
        known = (self.tree.loaded(node.id) for node in nodes if node.id not in self._left_out)
        return engine_messages(self.tree.system, (message for message in known if message is not None))

    # What the person does

    def is_free(self, then: str) -> bool:
        """Whether the conversation may be changed now; if not, says why, and what to do `then`."""
        if self.busy:
            self._hint(f"A reply is being written; Esc stops it. {then}")
        elif self.view.busy:
            self._hint(f"The conversation is still being read. {then}")
        else:
            return True
        return False

    def can_ask(self, then: str) -> bool:
        """Whether a model can answer now; if not, says why, and what to do `then`."""
        if self._model.loading:
            self._hint(f"The model is still loading. {then}")
        elif self._model.loaded is None:
            self._hint(f"No model is loaded: F5 opens the menu. {then}")
        else:
            return self.is_free(then)
        return False

    def send(self, text: str, instead_of: int | None = None) -> bool:
        """Send a message, as another branch if it is `instead_of` one; False leaves it in the prompt, and says why.

        It takes the place of a question at the end that has no reply.
        """
        if not self.can_ask("Your message stays in the box."):
            return False
        parent, last = self.tree.active, self.tree.path()[-1:]
        replaced = (
            instead_of if instead_of is not None else next((each.id for each in last if each.role == "user"), None)
        )
        if replaced is not None:
            parent = self.tree.path(replaced)[-1].parent
            self._transcript.cut(replaced)
        question = self.tree.add("user", text, parent).id
        self._transcript.show(question_items(text, place(self.tree, question)), question)
        if not self.ask_otherwise(question):
            self._ask(question)
        return True

    def answer_again(self, question: int) -> None:
        """Let the model write another reply to a question of the branch shown, as another branch."""
        if self.can_ask("Then /retry.") and not self.ask_otherwise(question):
            shown = next((node.id for node in self.tree.path() if node.parent == question), None)
            if shown is not None:
                self._transcript.cut(shown)
            self._ask(question)

    def go_on(self, reply: int) -> bool:
        """Let the model go on with a reply of the branch shown that was cut off, as another one that begins like it.

        False if it cannot, having said why.
        """
        begun = self.tree.loaded(reply)
        if begun is None or begun.parent is None or not self.can_ask("Then /continue."):
            return False
        if begun.finish_reason not in CUT_OFF:
            self._hint("This reply is not cut off; /retry lets the model answer again.")
            return False
        self._transcript.cut(reply)
        self._ask(begun.parent, begun)
        return True

    def branch_from(self, text: str) -> None:
        """Let the model write the reply whose tokens are shown anew, as another one that begins with `text`."""
        if not self.can_ask("Then choose a token."):
            return
        reply = None if self._last is None else self.tree.loaded(self._last)
        if reply is None or reply.parent is None or all(node.id != reply.id for node in self.tree.path()):
            self._hint("The reply that these tokens are of is not shown; go to its branch first.")
            return
        self._transcript.cut(reply.id)
        self._ask(reply.parent, replace(reply, text=text))

    def new_answer(
        self,
        question: int,
        sampling: Sampling,
        begun: Message | None = None,
        title: str = "",
        other: Mapping[str, Any] | None = None,
    ) -> Answer:
        """A reply to a question that is still to be written; the model must be loaded.

        `title` is that of another model, `other` what else is not as the chat is.
        """
        assert self._model.loaded is not None
        title, adapters = title or self._model.loaded.title, adapter_words(self._loras.applied)
        made_with = asdict(sampling) | {"max_tokens": self.max_tokens, "kv": self._model.layout, "loras": adapters}
        made_with |= other or {}
        self._replies += 1
        if begun is not None:
            made_with["continued_after"] = len(begun.text)
        return Answer(self._replies, question, title, made_with, begun)

    async def given(self, question: int) -> tuple[Message, ...]:
        """The messages that a model is given to answer a question. Raises HistoryError."""
        ids = [node.id for node in self.tree.path(question) if node.id not in self._left_out]
        return await self._store.messages(self.tree, ids)

    def _ask(self, question: int, begun: Message | None = None) -> None:
        self._answer, self._last = self.new_answer(question, self.sampling, begun), None
        answer = self._answer
        count = len(self.tree.children(question)) + 1
        self._transcript.begin_reply(reply_name(answer.model, (count, count), begun is not None))
        self._status.change(state="reading", busy=True, rate=0.0)
        self._transcript.run_worker(self._submit(answer, begun.text if begun else ""), group="ask")

    async def _submit(self, answer: Answer, begun: str) -> None:
        try:
            answer.given = await self.given(answer.question)
        except HistoryError as error:
            self._give_up(answer, str(error))
            return
        if answer.stopped:  # before the engine knew of it
            self._give_up(answer, "")
            return
        messages = engine_messages(self.tree.system, answer.given)
        self._engine.submit(Generate(answer.number, messages, self.sampling, self.max_tokens, begun))

    def stop(self) -> None:
        """Mark the reply that is being written as stopped; the engine is told by the caller."""
        if self._answer is not None:
            self._answer.stopped = True
            self._status.change(state="stopping")

    def set_system(self, text: str) -> None:
        """Set the system prompt; without text, show it."""
        if text:
            self.tree.set_system(text)
            self._note("The system prompt is set for what follows.", "notice")
        else:
            system = self.tree.system
            self._note(f"System prompt: {system}" if system else "There is no system prompt.", "notice")

    def drop(self, count: str) -> None:
        """Leave the oldest questions, so many of them, and their replies out of what the model is given."""
        if count and (not count.isdecimal() or int(count) == 0):
            self._hint(f"/drop takes a number of questions, not {count}.")
        elif self.is_free("Then /drop."):
            given = [node for node in self.tree.path() if node.id not in self._left_out]
            dropped = oldest_exchanges(given, int(count or 1))
            self._left_out |= {node.id for node in dropped}
            self.view.begin(lambda: self._tell_dropped([node.id for node in dropped if node.role == "user"]))

    async def _tell_dropped(self, questions: list[int]) -> None:
        messages = await self._store.messages(self.tree, questions)
        self._note(dropped_note([message.text for message in messages]), "notice")

    def begin(self, tree: Tree) -> None:
        """Go on with another conversation. The transcript is left as it is."""
        self.tree = tree
        self._left_out.clear()

    def leave(self) -> None:
        """Keep what has come of a reply. The engine has ended, and no widget is there any more."""
        if (answer := self._answer) is not None:
            for event in self._engine.drain():
                if isinstance(event, ReplyEvent) and isinstance(event.event, Token) and event.reply == answer.number:
                    answer.take(event.event)
            keep_answer(self.tree, answer)
            if answer.message is not None:
                finish_answer(self.tree, answer, "cancelled", {})

    # What the engine says

    def show(self) -> None:
        """Show and keep what has come of the reply since the last call."""
        if self._answer is not None:
            self._show(self._answer)

    def _show(self, answer: Answer) -> None:
        keep_answer(self.tree, answer)
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
            case Finished(reason="cancelled") if answer.empty:
                self._give_up(answer, "")
            case Finished():
                self._finish(answer, event.reason, asdict(event.timings))
                if event.reason == "context":
                    self._note(full_context_note(answer.given, self._status.status.context), "notice")
                self._status.change(rate=event.timings.decode_tps)
                self._loras.on_reply(event.timings.decode_tps)

    def _show_stats(self) -> None:
        if (stats := self._stats) is not None:
            self._stats, self._stats_shown = None, time.monotonic()
            self._give_stats(stats)
            self._status.change(rate=stats.timings.decode_tps, tokens=stats.kv.tokens, context=stats.kv.context)

    def _finish(self, answer: Answer, reason: str, figures: Mapping[str, Any]) -> None:
        answer.end()
        self._show(answer)
        self._answer, self._last = None, answer.message
        finish_answer(self.tree, answer, reason, figures)
        self._note(figures_line(reason, figures, adapter_words(self._loras.applied)), "figures")
        self._transcript.end_reply(answer.message)
        self._show_stats()
        self._status.change(state="ready", busy=False)

    def on_failed(self, event: Failed, reply: int) -> None:
        """A reply was stopped before its end, or broken off; what there is of it stays."""
        answer = self._answer
        if answer is None or answer.number != reply:
            return
        keep_answer(self.tree, answer)
        why = "" if event.cancelled else event.message
        if answer.message is None:
            self._give_up(answer, why)
            return
        self._finish(answer, "cancelled" if event.cancelled else "error", {})
        if why:
            self._note(why, "error")

    def _give_up(self, answer: Answer, why: str) -> None:
        """There is nothing of the reply: show what was there before it was asked for."""
        self._answer = None
        self._transcript.end_reply(None)
        self._status.change(state="ready", busy=False)
        self.view.begin(lambda: self._show_before(answer.question, why))

    async def _show_before(self, question: int, why: str) -> None:
        await self._transcript.written()
        self._transcript.cut(question)
        await self.view.show_from(self.tree, question)
        if self.tree.active == question:
            self._note(NO_REPLY, "notice")
        if why:
            self._note(why, "error")
