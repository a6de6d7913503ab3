"""Several replies to one question, written at once: one is kept, and the others stay as branches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from app.candidates import Candidate
from app.conversation import engine_messages, finish_answer, keep_answer
from app.engine_events import Command, Failed, ManyEvent, ReplyStarted
from app.engine_thread import EngineThread
from app.notes import NO_REPLY, full_context_note, shortened
from app.sanitize import visible
from app.screens.conversation_control import ConversationControl
from app.screens.message_control import MessageControl
from app.screens.side_screen import SideScreen
from app.store.records import HistoryError
from app.units import format_count
from app.widgets.render import NoteKind
from app.widgets.status_bar import StatusBar
from app.widgets.transcript import Transcript
from inference.events import Finished, Notice, Prefill, Token

C = TypeVar("C", bound=Candidate)


@dataclass(frozen=True)
class ChatParts:
    """The parts of the chat that replies need. `note` writes in the transcript, `hint` shows a passing message."""

    engine: EngineThread
    conversation: ConversationControl
    messages: MessageControl
    transcript: Transcript
    status: StatusBar
    note: Callable[[str, NoteKind], None]
    hint: Callable[[str], None]


class SideReplies(Generic[C]):
    """Asks for the replies, keeps them in the history as they grow, and shows the one that is chosen.

    The conversation is lent to it meanwhile.
    """

    def __init__(self, chat: ChatParts) -> None:
        self._engine = chat.engine
        self._conversation = chat.conversation
        self._messages = chat.messages
        self._transcript = chat.transcript
        self._status = chat.status
        self._note = chat.note
        self._hint = chat.hint
        self._candidates: Sequence[C] = ()
        self._screen: SideScreen | None = None
        self._number = 0
        self._open = False
        self._why = ""
        self._kept: int | None = None
        self._leaf: int | None = None
        """The last message of the branch that was shown before."""

    @property
    def _writing(self) -> bool:
        return any(not each.ended for each in self._candidates)

    def _command(self, messages: tuple[dict[str, str], ...]) -> Command:
        """What asks the engine for the replies."""
        raise NotImplementedError

    def _make_screen(self, question: str) -> SideScreen:
        """The screen that shows them; `question` is fit for it."""
        raise NotImplementedError

    def _begin(self, question: int, candidates: Sequence[C]) -> None:
        """Let the model write these replies to a question."""
        self._candidates = candidates
        self._leaf = self._conversation.tree.active
        self._kept, self._why = None, ""
        self._number = candidates[0].answer.number
        self._open = self._conversation.lent = True
        self._status.change(state="writing", busy=True, rate=0.0)
        self._transcript.run_worker(self._submit(question), group="ask")

    async def _submit(self, question: int) -> None:
        try:
            given = await self._conversation.given(question)
        except HistoryError as error:
            self._break_off("error", str(error))
            return
        if all(each.answer.stopped for each in self._candidates):  # before the engine knew of it
            self._break_off("cancelled", "")
            return
        for each in self._candidates:
            each.answer.given = given
        messages = engine_messages(self._conversation.tree.system, given)
        self._engine.submit(self._command(messages))

    # What the person does

    def stop(self) -> None:
        """Stop all that is being written."""
        if self._writing:
            for each in self._candidates:
                each.answer.stopped = True
            self._engine.cancel()

    def _keep(self, index: int) -> None:
        if self._open:  # a second key may come before the screen is gone
            self._kept = index
            self.stop()
            self._close_if_over()

    def _leave(self) -> None:
        if self._writing:
            self.stop()
        elif self._open:
            self._close()

    def leave(self) -> None:
        """Keep what has come of the replies. The engine has ended, and no widget is there any more."""
        if not self._open:
            return
        for event in self._engine.drain():
            if isinstance(event, ManyEvent) and isinstance(event.event, Token) and event.number == self._number:
                self._candidates[event.index].take(event.event)
        for each in self._candidates:
            if not each.ended:
                self._end(each, "cancelled", {})
        self._conversation.tree.show(self._target())

    # What the engine says

    def on_event(self, wrapped: ManyEvent) -> None:
        """One event of one of the replies."""
        if wrapped.number != self._number or not self._open:
            return
        event, candidate = wrapped.event, self._candidates[wrapped.index]
        if self._screen is None and not isinstance(event, ReplyStarted):
            question = candidate.answer.given[-1].text
            self._screen = self._make_screen(visible(shortened(question)))
            self._transcript.app.push_screen(self._screen)
        match event:
            case ReplyStarted():
                candidate.answer.begin(event.marks, event.thinking)
            case Token():
                # What was sampled before the engine heard of the stop is not shown; held-back text (id -1) is.
                if event.id < 0 or not candidate.answer.stopped:
                    candidate.take(event)
            case Prefill() if self._screen is not None:
                self._screen.reading = f"reading {event.done}/{event.total}"
            case Notice():
                self._note(f"Reply {candidate.number}: {event.text}", "notice")
            case Finished():
                self._end(candidate, event.reason, asdict(event.timings))
                self._close_if_over()

    def on_failed(self, event: Failed, number: int) -> None:
        """The replies were stopped before they began, or broken off; what there is of them stays."""
        if number == self._number and self._open:
            self._break_off(*(("cancelled", "") if event.cancelled else ("error", event.message)))

    def show(self) -> None:
        """Show and keep what has come of the replies since the last call."""
        if self._open:
            self._save()
            if self._screen is not None:
                self._screen.show_news()

    def _save(self) -> None:
        """Keep what there is of each, so that the branches stand in the order of the candidates."""
        for each in self._candidates:
            keep_answer(self._conversation.tree, each.answer)
            if each.answer.message is None and not each.ended:
                break  # its first character may need another token

    def _end(self, candidate: C, reason: str, figures: Mapping[str, Any]) -> None:
        """There is no more of one reply; of one that was stopped before its first token there is none."""
        candidate.end(reason)
        self._save()
        keep_answer(self._conversation.tree, candidate.answer)
        if candidate.answer.message is not None or reason not in ("cancelled", "error"):
            finish_answer(self._conversation.tree, candidate.answer, reason, figures)

    def _break_off(self, reason: str, why: str) -> None:
        for each in self._candidates:
            if not each.ended:
                self._end(each, reason, {})
        self._why = why
        if why:
            self._hint(why)
        self._close_if_over()

    def _close_if_over(self) -> None:
        """Close once all have ended, if one is to be kept, or if there is none to keep."""
        none = all(each.answer.message is None for each in self._candidates)
        if not self._writing and (self._kept is not None or none):
            self._close()

    # What becomes of them

    def _target(self) -> int:
        """The message whose branch is to be shown: the kept one, else what was shown before, else the first reply."""
        made = [each.answer.message for each in self._candidates if each.answer.message is not None]
        kept = None if self._kept is None else self._candidates[self._kept].answer.message
        assert self._leaf is not None
        if kept is not None:
            return kept
        return made[0] if made and self._leaf == self._candidates[0].answer.question else self._leaf

    def _close(self) -> None:
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.close(self._kept)
        self._open = self._conversation.lent = False
        self._status.change(state="ready", busy=False)
        self._conversation.view.begin(self._show_target)

    async def _show_target(self) -> None:
        tree, view, target = self._conversation.tree, self._conversation.view, self._target()
        question, leaf = self._candidates[0].answer.question, self._leaf
        old = next((node.id for node in tree.path(leaf) if node.parent == question), None)
        if old is not None:
            assert leaf is not None
            tree.show(leaf)
            await view.show_back_to(tree, old)
            self._transcript.cut(old)
        tree.show(target)
        path = [node.id for node in tree.path()]
        after = path[path.index(question) + 1 :]
        if after:
            await view.show_from(tree, after[0])
        others = sum(each.answer.message not in (None, target) for each in self._candidates)
        if others:
            beside = format_count(others, "other reply", "other replies")
            self._note(f"{beside} beside it: alt+left and alt+right go from branch to branch.", "notice")
        elif old is None and not after:
            self._note(NO_REPLY, "notice")
        if self._why:
            self._note(self._why, "error")
        if any(each.reason == "context" for each in self._candidates):
            self._note(full_context_note(self._candidates[0].answer.given, self._status.status.context), "notice")
