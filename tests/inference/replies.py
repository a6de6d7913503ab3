"""Reading the events of a reply, for the Engine's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inference import Engine, Sampling
from inference.events import Event, Finished, FinishReason, Token

CLOSE = 1e-4
"""Largest difference between logits of the tiny model that are computed in steps of other sizes."""
IDS = [508, 299, 419, 425, 460, 259, 377, 426, 368, 371, 13]
GREEDY = Sampling(temperature=0)


def reply(
    engine: Engine, prompt: Any = IDS, sampling: Sampling = GREEDY, max_tokens: int | None = 12, **more: Any
) -> list[Event]:
    """All events of a reply."""
    return list(engine.generate(prompt, sampling, max_tokens, **more))


def ids_of(events: Sequence[Event]) -> list[int]:
    """The sampled ids."""
    return [event.id for event in events if isinstance(event, Token) and event.id >= 0]


def text_of(events: Sequence[Event]) -> str:
    """The text that a person sees."""
    return "".join(event.text for event in events if isinstance(event, Token))


def reason_of(events: Sequence[Event]) -> FinishReason:
    """Why the reply ended, which the last event and no other says."""
    last = events[-1]
    assert isinstance(last, Finished)
    assert not any(isinstance(event, Finished) for event in events[:-1])
    return last.reason
