"""What adapters cost: measured tokens per second with and without, and what they changed in the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from app.panels.kv_panel import layer_ranges
from app.theme import Look
from app.units import format_count
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
    out = Text()
    theirs = [row for row in cost.decode if row.kind == "lora"]
    if not theirs:
        return out
    out.append("Speed    ", look.primary)
    for rate, which in ((cost.rate, "with them"), (cost.plain_rate, "without")):
        out.append("no reply yet" if rate is None else f"{rate:.1f} tok/s", look.muted if rate is None else look.text)
        out.append(f" {which}{' · ' if which != 'without' else ''}", look.muted)
    if cost.rate and cost.plain_rate:
        out.append(f" · {cost.rate / cost.plain_rate:.2f} of it", look.text)
    dispatches, of_all = (sum(row.dispatches for row in rows) for rows in (theirs, cost.decode))
    out.append("\nPlan     ", look.primary)
    out.append(f"{format_count(dispatches, 'dispatch', 'dispatches')} of {of_all:,} a token", look.text)
    out.append(" are theirs, the rows “lora” of F2", look.muted)
    for label, note, layers in fusions(cost.decode):
        out.append("\nFusion   ", look.primary)
        out.append(f"{label} ", look.text)
        out.append(f"{note}{f' · layers {layer_ranges(layers)}' if layers else ''}", look.muted)
    return out


def fusions(rows: Sequence[PlanRow]) -> list[tuple[str, str, list[int]]]:
    """What rewrites say of adapters: the operation, the note and its layers, in the plan's order."""
    found: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        for note in row.notes:
            if note.startswith("lora_into_matmul") or ("not applied" in note and "adapter" in note):
                layers = found.setdefault((row.name, note), [])
                layers.extend(() if row.layer is None else (row.layer,))
    return [(name, note, layers) for (name, note), layers in found.items()]
