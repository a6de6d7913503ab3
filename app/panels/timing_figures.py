"""Where the time of a reply's tokens went: the figures and the text of the timing panel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.text import Text

from app.panels.reply_trace import BESIDE, SPANS, ReplyTrace
from app.theme import Look
from app.units import format_count, format_seconds

_BAR = 8


@dataclass(frozen=True)
class TimingFigures:
    """Seconds a token, but for `tokens`; the first token, which comes with the prompt, counts only in `first_s`.

    `spans` and `beside` are means by the names of SPANS and BESIDE; `interface_s` is processor time.
    """

    tokens: int
    first_s: float
    mean_s: float
    at_95_s: float
    spans: dict[str, float]
    beside: dict[str, float]
    interface_s: float

    @property
    def covered(self) -> float:
        """The share of the wall time that the spans account for."""
        return sum(self.spans.values()) / self.mean_s if self.mean_s else 0.0


def timing_figures(trace: ReplyTrace) -> TimingFigures | None:
    """The figures of the reply so far; None while it has fewer than two tokens."""
    if (count := len(trace) - 1) < 1:
        return None
    means = {name: seconds / count for name, seconds in trace.seconds.items()}
    return TimingFigures(
        tokens=count + 1,
        first_s=trace.first_s,
        mean_s=sum(trace.walls[1:]) / count,
        at_95_s=trace.sorted_walls()[math.ceil(0.95 * count) - 1],
        spans={name: means[name] for name in SPANS},
        beside={name: means[name] for name in BESIDE},
        interface_s=trace.interface_s / (count + 1),
    )


def token_speeds(walls: Sequence[float], buckets: int) -> tuple[list[float], list[float]]:
    """Tokens per second, and the longest time of a token, in up to so many parts of equally many tokens."""
    parts = min(buckets, len(walls))
    bounds = [len(walls) * part // parts for part in range(parts + 1)] if parts else [0]
    pieces = [walls[start:end] for start, end in pairwise(bounds)]
    return [len(each) / took if (took := sum(each)) else 0.0 for each in pieces], [max(each) for each in pieces]


def head_text(figures: TimingFigures | None, look: Look) -> Text:
    """Tokens, the first one, mean and 95th percentile."""
    if figures is None:
        return Text("No reply of two tokens yet.", look.muted)
    return Text.assemble(
        (format_count(figures.tokens, "token"), look.text),
        (" · first after ", look.muted),
        (format_seconds(figures.first_s), look.text),
        ("\nmean ", look.muted),
        (milliseconds(figures.mean_s), look.text),
        (" · 95% within ", look.muted),
        (milliseconds(figures.at_95_s), look.text),
    )


def spans_text(figures: TimingFigures, gpu: bool, look: Look, width: int, moved: int = 0) -> Text:
    """The mean spans of a token, one after another, and what other threads did meanwhile. `moved` are the bytes that
    go between devices for each, of a model that is split."""
    width = max(28, width)
    out = Text(no_wrap=True)
    names = {
        "encode": "encode commands",
        "wait": "both devices" if moved else "wait for the GPU" if gpu else "compute (NumPy)",
        "sample": "host sampling",
        "text": "detokenise",
        "report": "hand over",
        "finish": "finish commands",
        "submit": "submit them",
    }

    def row(name: str, seconds: float, share: float | None) -> None:
        bar = max(0, min(_BAR, width - 32)) if share is not None else 0
        filled = round(bar * min(1.0, share or 0.0))
        value = f"{milliseconds(seconds):>9}" + (f"{share:>5.0%}" if share is not None else " " * 5)
        out.append(name.ljust(width - bar - len(value) - 1)[: width - bar - len(value) - 1], look.muted)
        out.append("━" * filled, look.primary).append("━" * (bar - filled), look.faint)
        out.append(f" {value}\n", look.text)

    out.append("One after another\n", look.primary)
    for name in ("encode", "wait", "sample", "text", "report"):
        row(names[name], figures.spans[name], figures.spans[name] / figures.mean_s if figures.mean_s else 0.0)
    row("sum", sum(figures.spans.values()), figures.covered)
    out.append("Meanwhile, in other threads\n", look.primary)
    if gpu and not moved:
        for name in BESIDE:
            row(names[name], figures.beside[name], None)
    row("interface, processor", figures.interface_s, None)
    if moved:
        out.append("Between the devices\n", look.primary)
        value = f"{moved:,} B"
        out.append("moved for a token".ljust(width - len(value)), look.muted).append(f"{value}\n", look.text)
    out.rstrip()
    return out


def milliseconds(seconds: float) -> str:
    """`12.3 ms`, `0.04 ms`."""
    return f"{seconds * 1000:.1f} ms" if seconds >= 0.01 else f"{seconds * 1000:.2f} ms"
