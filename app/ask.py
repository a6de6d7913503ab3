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
from inference.errors import GlasschatError
from inference.events import Finished, Notice, Timings, Token
from inference.sampling import Sampling

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

    Ctrl+C stops the answer, prints what there is, and gives 130.
    """
    if question.raw:
        ids = engine.tokenizer.encode(question.text, add_special=True)
    else:
        system = [{"role": "system", "content": question.system}] if question.system else []
        ids = engine.encode_chat([*system, {"role": "user", "content": question.text}])
    sequence = engine.sequence()
    out = _Output(live=not question.as_json)
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
    }


class _Output:
    """The answer on stdout: made visible where that is a terminal, raw where it is a file or a pipe."""

    def __init__(self, live: bool) -> None:
        self._live = live
        self._border = Sanitizer() if sys.stdout.isatty() else None
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """The raw answer."""
        return "".join(self._pieces)

    def write(self, text: str) -> None:
        self._pieces.append(text)
        if self._live and text:
            sys.stdout.write(self._border.feed(text) if self._border else text)
            sys.stdout.flush()

    def end(self) -> None:
        if not self._live:
            return
        if self._border:
            sys.stdout.write(self._border.flush())
        if not self.text.endswith("\n"):
            sys.stdout.write("\n")
        sys.stdout.flush()


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
