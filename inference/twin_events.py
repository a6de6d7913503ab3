"""Two lanes that answer side by side: what each is, and what they tell of themselves and of each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.events import Event
from inference.sampling import Sampling

if TYPE_CHECKING:
    from inference.engine import Engine
    from inference.sequence import Sequence


@dataclass(frozen=True)
class TwinLane:
    """One configuration: an engine, which both lanes may share, and the sequence of it that holds the conversation.

    `loras` are adapters by name and strength, None for those in use. Where lanes that share an engine differ in them,
    the engine changes its adapters for each token: little for other strengths, all plans anew for other adapters.
    """

    engine: Engine
    sequence: Sequence
    sampling: Sampling
    loras: tuple[tuple[str, float], ...] | None = None


@dataclass(frozen=True)
class LaneEvent:
    """One event of one lane's reply, as a reply of its own would have it: `lane` is 0 or 1."""

    lane: int
    event: Event


@dataclass(frozen=True)
class Divergence:
    """The lanes chose different tokens for the first time. `position` counts the tokens of the reply from 0.

    The end of a reply is a token here too: a lane may end where the other goes on.
    """

    position: int


@dataclass(frozen=True)
class KlDivergence:
    """KL(lane 0 || lane 1) at one token of lane 0's text, in nats, and the mean over its tokens so far.

    It is taken between what both models make of the same text, softmax(logits), before anything of sampling.
    """

    position: int
    nats: float
    mean: float


@dataclass(frozen=True)
class NoKlDivergence:
    """From here on there is no KL divergence, and why."""

    reason: str


TwinEvent = LaneEvent | Divergence | KlDivergence | NoKlDivergence
