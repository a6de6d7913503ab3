"""Counts the tokens of what is being written, on a thread of its own: neither typing nor a reply waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from inference.errors import GlasschatError

_log = logging.getLogger(__name__)


class TextTokenizer(Protocol):
    def encode(self, text: str, /) -> list[int]: ...


class CountingEngine(Protocol):
    """The part of the engine that turns text into tokens. It touches no device, and may be used from any thread."""

    @property
    def tokenizer(self) -> TextTokenizer: ...
    def encode_chat(self, messages: Sequence[Mapping[str, str]], /) -> list[int]: ...


@dataclass(frozen=True)
class CountTokens:
    """Count the message `text`, the parts of it that are attached files, and the prompt that it makes.

    `messages` is the conversation so far. The answer carries `number`.
    """

    number: int
    text: str
    files: tuple[str, ...]
    messages: tuple[Mapping[str, str], ...]


@dataclass(frozen=True)
class TokensCounted:
    """Tokens of a message, of each file in it, and of the whole prompt; None where the template takes no such one."""

    number: int
    text: int
    files: tuple[int, ...]
    prompt: int | None


class TokenCounter:
    """Counts what was asked last; `report` is called from its thread."""

    def __init__(self, report: Callable[[TokensCounted], None]) -> None:
        self._report = report
        self._engine: CountingEngine | None = None
        self._asked: CountTokens | None = None
        self._closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="tokens", daemon=True).start()

    def use(self, engine: CountingEngine | None) -> None:
        """Count as this engine does from now on; with None there is nothing to count with."""
        self._engine = engine

    def ask(self, request: CountTokens) -> None:
        """Count this, and not what is still waiting."""
        with self._changed:
            self._asked = request
            self._changed.notify()

    def close(self) -> None:
        """End the thread, as soon as it has counted what it is at."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked is not None or self._closed)
                request, self._asked = self._asked, None
            if self._closed or request is None:
                return
            if (engine := self._engine) is not None:
                try:
                    self._report(count_tokens(engine, request))
                except Exception:  # a count is not worth the thread
                    _log.exception("counting tokens failed")


def count_tokens(engine: CountingEngine, request: CountTokens) -> TokensCounted:
    """The answer to `request`."""
    encode = engine.tokenizer.encode
    try:
        prompt = len(engine.encode_chat((*request.messages, {"role": "user", "content": request.text})))
    except GlasschatError:
        prompt = None
    files = tuple(len(encode(file)) for file in request.files)
    return TokensCounted(request.number, len(encode(request.text)), files, prompt)
