"""`chat ask`: one prompt, one answer, no screen."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from app.sanitize import Sanitizer
from app.terminal import ProgressLine
from app.units import format_count
from inference.errors import GlasschatError
from inference.events import Finished, Notice, Timings, Token
from inference.sampling import Sampling
from inference.thinking import Part, Piece, ThoughtSplitter

if TYPE_CHECKING:
    from inference import Engine
    from inference.sequence import Sequence


class UsageError(Exception):
    """The command line asks for something that makes no sense; exit code 2."""


@dataclass(frozen=True)
class Question:
    """What is asked. `raw` sends the text without a chat template."""

    text: str
    system: str = ""
    raw: bool = False
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    as_json: bool = False


def read_question(prompt: str | None) -> str:
    """The prompt, and what is piped in: both, with an empty line between, where both are there."""
    piped = ""
    if prompt == "-" or not sys.stdin.isatty():
        data = sys.stdin.buffer.read()
        try:
            piped = data.decode("utf-8").rstrip("\n")
        except UnicodeDecodeError as error:
            raise GlasschatError(f"the input is not UTF-8 text: {error}") from error
    parts = [part for part in (None if prompt == "-" else prompt, piped) if part and part.strip()]
    if not parts:
        raise UsageError("nothing to ask: give a PROMPT, or pipe some text in")
    return "\n\n".join(parts)


def ask(engine: Engine, question: Question, progress: ProgressLine) -> int:
    """Print the answer, as text while it is written or as one JSON object; returns the exit code.

    A thought before it goes to stderr where that is a terminal, and is part of the text in the JSON object.
    Ctrl+C stops the answer, prints what there is, and gives 130.
    """
    if question.raw:
        prompt = question.text
        ids = engine.tokenizer.encode(prompt, add_special=True)
    else:
        system = [{"role": "system", "content": question.system}] if question.system else []
        messages = [*system, {"role": "user", "content": question.text}]
        prompt, ids = engine.render(messages), engine.encode_chat(messages)
    sequence, marks = engine.sequence(), engine.thinking
    splitter = ThoughtSplitter(marks, marks is not None and marks.opened_by(prompt))
    out = _Output(splitter, live=not question.as_json)
    output_ids: list[int] = []
    finished = Finished("cancelled", Timings())
    with _interrupt_cancels(engine) as interrupted:
        for event in engine.generate(ids, question.sampling, max_tokens=question.max_tokens, sequence=sequence):
            match event:
                case Token():
                    if event.id >= 0:
                        output_ids.append(event.id)
                    out.write(event.text)
                case Notice():
                    progress(event)
                case Finished():
                    finished = event
    out.end()
    if question.as_json:
        print(json.dumps(_as_json(engine, sequence, ids, output_ids, out.text, finished), ensure_ascii=False))
    elif finished.reason == "context":
        print(f"The answer was cut: the context of {engine.info.context} tokens is full.", file=sys.stderr)
    elif out.only_thought and finished.reason == "length":
        tokens = format_count(finished.timings.output_tokens, "token")
        print(f"The thought was cut after {tokens}, before an answer; raise --max-tokens.", file=sys.stderr)
    elif out.only_thought and finished.reason == "stop":
        print("The model ended its reply after a thought, without an answer.", file=sys.stderr)
    return 130 if interrupted else 0


def _as_json(
    engine: Engine, sequence: Sequence, prompt_ids: list[int], output_ids: list[int], text: str, finished: Finished
) -> dict[str, Any]:
    info, memory, kv = engine.info, engine.memory(), sequence.kv_stats()
    timings = asdict(finished.timings)
    keys = ("load_s", "prefill_s", "prefill_tps", "decode_s", "decode_tps", "ttft_s")
    return {
        "model": info.model,
        "device": info.device,
        "adapter": info.adapter,
        "prompt_tokens": prompt_ids,
        "output_tokens": output_ids,
        "text": text,
        "finish_reason": finished.reason,
        "timings": {key: timings[key] for key in keys},
        "memory": {key: getattr(memory, key) for key in ("weights_bytes", "kv_bytes", "scratch_bytes", "peak_bytes")},
        "kv": {
            "layout": kv.layout,
            "capacity_bytes": kv.capacity_bytes,
            "allocated_bytes": kv.allocated_bytes,
            "used_bytes": kv.used_bytes,
            "tokens": kv.tokens,
        },
        "kernels": engine.kernels(),
    } | (_split(engine) if info.placement else {})


def _split(engine: Engine) -> dict[str, Any]:
    """What is told besides of a model that is split between devices."""
    from inference.plan.explain import moved_per_token

    return {"placement": engine.info.placement, "moved_bytes_per_token": moved_per_token(engine.plan("decode"))}


class _Output:
    """The answer on stdout: made visible where that is a terminal, raw where it is a file or a pipe.

    A thought goes to stderr, dim, where that is a terminal, and nowhere else.
    """

    def __init__(self, splitter: ThoughtSplitter, live: bool) -> None:
        self._live = live
        self._splitter = splitter
        self._border = Sanitizer() if sys.stdout.isatty() else None
        self._thought_border = Sanitizer()
        self._pieces: list[str] = []
        self._part: Part | None = None
        self._ends_line: dict[Part, bool] = {"thought": False, "answer": False}

    @property
    def text(self) -> str:
        """All that the model has written."""
        return "".join(self._pieces)

    @property
    def only_thought(self) -> bool:
        """Whether there is a thought and no answer."""
        return self._part == "thought"

    def write(self, text: str) -> None:
        self._pieces.append(text)
        self._show(self._splitter.push(text))

    def end(self) -> None:
        self._show(self._splitter.flush())
        if self.only_thought:
            self._end_thought()
        if not self._live:
            return
        if self._border:
            sys.stdout.write(self._border.flush())
        if not self._ends_line["answer"]:
            sys.stdout.write("\n")
        sys.stdout.flush()

    def _show(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if piece.part == "answer" and self.only_thought:
                self._end_thought()
            self._part = piece.part
            self._ends_line[piece.part] = piece.text.endswith("\n")
            if piece.part == "thought":
                self._show_thought(self._thought_border.feed(piece.text))
            elif self._live:
                sys.stdout.write(self._border.feed(piece.text) if self._border else piece.text)
                sys.stdout.flush()

    def _end_thought(self) -> None:
        self._show_thought(self._thought_border.flush() + ("\n" if self._ends_line["thought"] else "\n\n"))

    def _show_thought(self, text: str) -> None:
        if self._live and sys.stderr.isatty():
            # Dim ends with each piece, so that whatever interrupts it does not leave the terminal so.
            sys.stderr.write(f"\x1b[2m{text}\x1b[22m")
            sys.stderr.flush()


@contextmanager
def _interrupt_cancels(engine: Engine) -> Iterator[list[bool]]:
    """The first Ctrl+C cancels the answer, the second one interrupts as usual. Yields a list that it then fills."""
    interrupted: list[bool] = []

    def on_interrupt(number: int, frame: object) -> None:
        if interrupted:
            raise KeyboardInterrupt
        interrupted.append(True)
        engine.cancel()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
