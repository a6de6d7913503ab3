"""How far two lanes are from each other, as the interface has heard of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.text import Text

from app.theme import Look
from app.units import format_count
from inference.twin_events import Divergence, KlDivergence, NoKlDivergence


class TwinGap:
    """`nats` has the KL divergence of each token so far; `diverged` is the first token that differs; `reason` says why
    nothing more is measured, "" as long as something is."""

    def __init__(self) -> None:
        self.nats: list[float] = []
        self.mean = 0.0
        self.diverged: int | None = None
        self.reason = ""

    def take(self, event: Divergence | KlDivergence | NoKlDivergence) -> None:
        """One more event."""
        match event:
            case Divergence(position):
                self.diverged = position
            case KlDivergence(nats=nats, mean=mean):
                self.nats.append(nats)
                self.mean = mean
            case NoKlDivergence(reason):
                self.reason = reason

    def compared(self, position: int) -> bool:
        """Whether it is known that the lanes differ at or before that token, do not, or will not be compared there."""
        return position < len(self.nats) or self.diverged is not None or bool(self.reason)

    def words(self, look: Look, written: int) -> Text:
        """The figures in one line; `written` are the tokens of the longer lane, whose end is compared too."""
        line = Text()
        if self.nats:
            line.append("KL ", look.muted).append(f"{self.nats[-1]:.4f}", look.text).append(" nats · mean ", look.muted)
            line.append(f"{self.mean:.4f}", look.text).append(" · ", look.muted)
            if self.diverged is None:
                line.append(f"the same {format_count(min(len(self.nats), written), 'token')} so far", look.success)
            else:
                line.append(f"they part at token {self.diverged + 1:,}", look.accent)
        if self.reason:
            line.append(" · " if self.nats else "", look.muted).append(self.reason, look.warning)
        return line


def peaks(values: Sequence[float], parts: int) -> list[float]:
    """The largest of each of up to so many parts, which hold equally many values."""
    count = min(parts, len(values))
    bounds = [len(values) * part // count for part in range(count + 1)] if count else [0]
    return [max(values[start:end]) for start, end in pairwise(bounds)]
