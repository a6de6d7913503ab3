"""`/alternatives`: several replies to one question at once, of which one is kept and the others stay as branches."""

from __future__ import annotations

from dataclasses import replace

from app.candidates import MOST, Candidate
from app.engine_events import Command, GenerateMany
from app.sanitize import visible
from app.screens.alternatives import AlternativesScreen
from app.screens.side_replies import SideReplies
from inference.sampling import Sampling

_USUAL = 3


class AlternativesControl(SideReplies[Candidate]):
    """The same question answered several times, each time by another draw."""

    _samplings: tuple[Sampling, ...] = ()

    def run(self, argument: str) -> None:
        """Do what follows `/alternatives`: answer the chosen question, or the last one, so many times at once."""
        count = int(argument) if argument.isdecimal() and len(argument) < 3 else 0 if argument else _USUAL
        conversation, question = self._conversation, self._messages.question
        if not 2 <= count <= MOST:
            self._hint(f"/alternatives takes a number of replies from 2 to {MOST}, not {visible(argument)}.")
        elif question is None:
            self._hint("There is no question to answer yet.")
        elif conversation.sampling.temperature == 0:
            self._hint("At temperature 0 all replies would be the same; /set temperature 0.7 makes them differ.")
        elif conversation.can_ask("Then /alternatives."):
            self._messages.done()
            self._answer(question, count)

    def _answer(self, question: int, count: int) -> None:
        conversation = self._conversation
        seed = conversation.sampling.seed
        self._samplings = tuple(
            replace(conversation.sampling, seed=None if seed is None else seed + index) for index in range(count)
        )
        answers = [conversation.new_answer(question, sampling) for sampling in self._samplings]
        self._begin(question, [Candidate(number, answer) for number, answer in enumerate(answers, 1)])

    def _keep(self, index: int) -> None:
        """Keep one: the others are stopped, and once it has ended the screen goes."""
        if not self._open or self._candidates[index].ended:
            super()._keep(index)
            return
        self._kept = index
        for other, each in enumerate(self._candidates):
            if other != index and not each.ended:
                each.answer.stopped = True
                self._engine.stop_reply(other)
        if isinstance(self._screen, AlternativesScreen):
            self._screen.keep_later(index)

    def _command(self, messages: tuple[dict[str, str], ...]) -> Command:
        return GenerateMany(self._number, messages, self._samplings, self._conversation.max_tokens)

    def _make_screen(self, question: str) -> AlternativesScreen:
        return AlternativesScreen(question, self._candidates, self._keep, self._leave)
