"""One reply as it comes about: its prompt read, its tokens made text, its end found. Whoever samples drives it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from inference.events import Alternative, Event, FinishReason, Notice, Prefill, Prompted, Timings, Token
from inference.sampling import Sampled, Sampling
from inference.sequence import Sequence as TokenSequence
from inference.stops import StopStrings
from inference.tokenizer import StreamDecoder, Tokenizer

STATS_INTERVAL_S = 0.1
"""Between two Stats events of a reply."""


class Reply:
    """The state of one reply. `outputs` are its tokens so far, `finish` why it has ended, None while it has not."""

    def __init__(
        self, tokenizer: Tokenizer, sampling: Sampling, max_tokens: int | None = None, begun: bool = False
    ) -> None:
        """`begun` tells that the prompt ends within the reply."""
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._decoder = StreamDecoder(tokenizer, begun)
        self._stops = StopStrings(sampling.stop)
        self._stopped_by_string = False
        self._begun = False
        self.outputs: list[int] = []
        self.finish: FinishReason | None = "length" if max_tokens == 0 else None
        self.last: list[int] = []
        self.prompt_tokens = 0
        self.reused = 0

    @property
    def prefilled(self) -> int:
        """Tokens of the prompt that are computed anew."""
        return self.prompt_tokens - self.reused

    def read(self, sequence: TokenSequence, ids: list[int], cancelled: threading.Event) -> Iterator[Event]:
        """Read the prompt `ids` into `sequence`, all but `last`: the step of these chooses the first token.

        The longest common prefix with what `sequence` holds is kept. Raises ContextFull where `ids` do not fit, and
        ValueError for an id that the vocabulary does not have.
        """
        sequence.check_prompt(ids, self._sampling)
        # The last token is always computed anew.
        reused, notice = sequence.keep(ids[:-1])
        yield from self.begin(ids, reused, notice)
        *_, self.last = sequence.chunks(ids[reused:])
        for done in sequence.prefill(ids[reused : len(ids) - len(self.last)]):
            yield self.progress(reused + done)
            if cancelled.is_set():
                break
        if cancelled.is_set():
            self.finish = "cancelled"

    def begin(self, ids: Sequence[int], reused: int, notice: str | None) -> Iterator[Event]:
        """The prompt `ids` is about to be read, of which a sequence holds `reused` already; see Sequence.keep."""
        self.prompt_tokens, self.reused = len(ids), reused
        if notice:
            yield Notice(notice)
        yield self.progress(reused)
        yield Prompted(tuple(ids), reused)

    def progress(self, held: int) -> Prefill:
        """The first `held` tokens of the prompt are in the cache."""
        return Prefill(max(0, held - self.reused), self.prefilled, self.reused)

    def take(self, sampled: Sampled) -> Token | None:
        """The next token with what it adds to the text, None for one that ends the reply and is no part of it."""
        self._begun = True
        if sampled.id in self._tokenizer.stop_ids:
            self.finish = "stop"
            return None
        self.outputs.append(sampled.id)
        release = self._stops.push(self._decoder.push(sampled.id))
        if release.stopped:
            self._stopped_by_string = True
            self.finish = "stop"
        elif self._max_tokens is not None and len(self.outputs) >= self._max_tokens:
            self.finish = "length"
        return Token(sampled.id, release.text, sampled.logprob, self._alternatives(sampled))

    def flush(self) -> Token | None:
        """The text held back for UTF-8 or a stop string that did not come, if any; call it once, at the end."""
        if self._stopped_by_string:
            return None
        text = self._stops.push(self._decoder.flush()).text + self._stops.flush()
        return Token(-1, text, 0.0) if text else None

    def timings(self, load_s: float, prefill_s: float, decode_s: float) -> Timings:
        """The figures of the reply so far. `prefill_s` ends with the first token, which counts for no decoding."""
        outputs = len(self.outputs)
        return Timings(
            load_s=load_s,
            prefill_s=prefill_s,
            prefill_tps=self.prefilled / prefill_s if prefill_s > 0 else 0.0,
            decode_s=decode_s,
            decode_tps=(outputs - 1) / decode_s if outputs > 1 and decode_s > 0 else 0.0,
            ttft_s=prefill_s if self._begun else 0.0,
            prompt_tokens=self.prompt_tokens,
            reused_tokens=self.reused,
            output_tokens=outputs,
        )

    def _alternatives(self, sampled: Sampled) -> tuple[Alternative, ...]:
        pairs = zip(sampled.top_ids, sampled.top_logprobs, strict=True)
        return tuple(Alternative(token, self._tokenizer.decode([token]), logprob) for token, logprob in pairs)
