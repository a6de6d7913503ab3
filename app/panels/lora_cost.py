"""What adapters cost: measured tokens per second with and without, and what they changed in the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from app.panels.kv_panel import layer_ranges
from app.theme import Look
from app.units import format_count

if TYPE_CHECKING:
    from inference.plan.explain import PlanRow


@dataclass(frozen=True)
class LoraCost:
    """`rate` and `plain_rate` are tokens per second of the last reply with the adapters in use and of the last without
    any, None where there was none. `decode` is the plan of a step."""

    rate: float | None = None
    plain_rate: float | None = None
    decode: tuple[PlanRow, ...] = ()


def cost_text(cost: LoraCost, look: Look) -> Text:
    """The lines below the adapters; empty where no adapter is in use."""
    out, changed = Text(), fusions(cost.decode)
    if not changed:
        return out
    out.append("Speed    ", look.primary)
    for rate, which in ((cost.rate, "with them"), (cost.plain_rate, "without")):
        out.append("no reply yet" if rate is None else f"{rate:.1f} tok/s", look.muted if rate is None else look.text)
        out.append(f" {which}{' · ' if which != 'without' else ''}", look.muted)
    if cost.rate and cost.plain_rate:
        out.append(f" · {cost.rate / cost.plain_rate:.2f} of it", look.text)
    theirs = sum(row.dispatches for row in cost.decode if row.kind == "lora")
    out.append("\nPlan     ", look.primary)
    out.append(
        format_count(sum(row.dispatches for row in cost.decode), "dispatch", "dispatches") + " a token", look.text
    )
    alone = f"{theirs:,} for adapters alone, the rows “lora” of F2" if theirs else "none for adapters alone"
    out.append(f" · {alone}", look.muted)
    for name, words, layers in changed:
        out.append("\nFusion   ", look.primary)
        out.append(name, look.text)
        out.append(f" {', '.join(words)}{f' · layers {layer_ranges(layers)}' if layers else ''}", look.muted)
    return out


def fusions(rows: Sequence[PlanRow]) -> list[tuple[str, tuple[str, ...], list[int]]]:
    """What rewrites did for adapters: the operation, the rewrites and its layers, in the plan's order.

    A rewrite that was not applied comes with its reason.
    """
    found: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for row in rows:
        notes = (
            note for note in row.notes if note.startswith("lora_") or ("not applied" in note and "adapter" in note)
        )
        words = tuple(note if "not applied" in note else note.partition(":")[0] for note in notes)
        if words:
            layers = found.setdefault((row.name, words), [])
            layers.extend(() if row.layer is None else (row.layer,))
    return [(name, words, layers) for (name, words), layers in found.items()]
