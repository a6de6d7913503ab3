"""The last reply as the engine told it, token by token: what the timing, prompt and token panels show."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence

from app.engine_events import ReplyStarted
from inference.events import Event, Finished, Prompted, Stats, Token
from inference.vocabulary import Vocabulary

SPANS = ("report", "encode", "wait", "sample", "text")
"""What one thread does one after another for each token."""
BESIDE = ("finish", "submit")
"""What other threads do meanwhile."""


class ReplyTrace:
    """A prompt and the tokens that followed; grows while the reply is written. It belongs to the interface's thread.

    Everything is in flat arrays: as many records, 30,000 tokens with their alternatives would take the interpreter
    tens of milliseconds whenever it looks for garbage. `walls` are the seconds of each token; `seconds` are sums over
    all tokens but the first, which comes with the prompt, for each of SPANS and BESIDE. `interface_s` is the processor
    time of the interface's own thread since the reply began. `begun` is the text that the reply goes on from.
    """

    def __init__(self) -> None:
        self.vocabulary: Vocabulary | None = None
        self.clear()

    def clear(self) -> None:
        """Forget the reply."""
        self.begun = ""
        self.prompt: tuple[int, ...] = ()
        self.reused = 0
        self.ids = array("i")
        self.logprobs = array("d")
        self.walls = array("d")
        self.seconds = dict.fromkeys((*SPANS, *BESIDE), 0.0)
        self.first_s = 0.0
        self.interface_s = 0.0
        self.ended = False
        self._alternatives_end = array("q", (0,))
        self._alternative_ids = array("i")
        self._alternative_logprobs = array("d")
        self._began = time.thread_time()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        """Tokens of the reply so far."""
        return len(self.ids)

    def hear(self, event: ReplyStarted | Event) -> None:
        """Take the next event of a reply."""
        match event:
            case ReplyStarted():
                self.clear()
                self.begun = event.begun
            case Prompted(ids, reused):
                self.prompt, self.reused = ids, reused
            case Token() if event.id >= 0 and not self.ended:
                self._take(event)
            case Stats() | Finished():
                self.first_s = event.timings.ttft_s
                self.ended |= isinstance(event, Finished)
                self._clock()

    def sorted_walls(self) -> list[float]:
        """The seconds of all tokens but the first, the shortest first."""
        # What is sorted already costs little to sort again.
        self._sorted += self.walls[1 + len(self._sorted) :]
        self._sorted.sort()
        return self._sorted

    def stop(self) -> None:
        """The reply ends here: tokens that were sampled before the engine heard of it are no part of it."""
        self.ended = True

    def alternatives(self, index: int) -> list[tuple[int, float]]:
        """(id, log-probability) of the most likely tokens where the token `index` stands, the most likely first."""
        part = slice(self._alternatives_end[index], self._alternatives_end[index + 1])
        return list(zip(self._alternative_ids[part], self._alternative_logprobs[part], strict=True))

    def _take(self, token: Token) -> None:
        self.ids.append(token.id)
        self.logprobs.append(token.logprob)
        for each in token.alternatives:
            self._alternative_ids.append(each.id)
            self._alternative_logprobs.append(each.logprob)
        self._alternatives_end.append(len(self._alternative_ids))
        times, step, seconds = token.times, token.times.step, self.seconds
        self.walls.append(times.wall_s)
        if len(self.walls) > 1:
            seconds["report"] += times.report_s
            seconds["encode"] += step.encode_s
            seconds["wait"] += step.wait_s
            seconds["sample"] += step.sample_s
            seconds["text"] += times.text_s
            seconds["finish"] += step.finish_s
            seconds["submit"] += step.submit_s
        self._clock()

    def _clock(self) -> None:
        self.interface_s = time.thread_time() - self._began


def branch_text(vocabulary: Vocabulary, begun: str, reply: Sequence[int], index: int, chosen: int) -> str:
    """What a reply begins with whose token `index` is to be `chosen`, `begun` being what stands before its tokens.

    U+FFFD stands for characters that end with a later token.
    """
    text = b"".join(map(vocabulary.token_bytes, (*reply[:index], chosen)))
    if vocabulary.strips_space and not begun:
        text = text.removeprefix(b" ")
    return begun + text.decode("utf-8", "replace")
