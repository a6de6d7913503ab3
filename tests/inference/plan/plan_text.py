"""A plan's explained rows as text. Run as a module, it writes the files that test_explain.py compares with."""

from __future__ import annotations

from collections.abc import Sequence

from inference.plan.explain import PlanRow
from tests.conftest import DATA
from tests.inference.opening import open_numpy

FAMILIES = ("llama", "gemma3_text")


def render(rows: Sequence[PlanRow]) -> str:
    """One line a row, its notes and reasons below it; a layer like the one before is only named."""
    blocks: list[tuple[str, str]] = []
    for row in rows:
        where = "-" if row.layer is None else f"layer {row.layer}"
        if not blocks or blocks[-1][0] != where:
            blocks.append((where, ""))
        blocks[-1] = (where, blocks[-1][1] + _lines(row))
    text = ""
    previous = ""
    for where, body in blocks:
        text += f"{where}: as above\n" if body == previous else f"{where}:\n{body}"
        previous = body
    return text


def golden_file(family: str) -> str:
    """The name of the file in tests/data/plans."""
    return f"{family}-cpu-decode.txt"


def decode_plan(family: str) -> str:
    """The decode step of the tiny model on the CPU, as text."""
    path = DATA / "tiny" / family / "gguf" / "model-f16.gguf"
    return render(open_numpy(path, kernel=None).plan_rows("decode"))


def _lines(row: PlanRow) -> str:
    dtypes = f"{row.input_dtype} -> {row.output_dtype}" + (f", sums {row.accumulate}" if row.accumulate else "")
    weight = f", weight {row.weight}" if row.weight else ""
    text = f"  {row.kind} {row.name}: {row.shape}, {dtypes}{weight}\n"
    text += f"    {row.device} {row.variant} x{row.dispatches}: {row.reason}\n"
    text += "".join(f"    not {name}: {why}\n" for name, why in row.rejected)
    return text + "".join(f"    {note}\n" for note in row.notes)


def main() -> None:
    folder = DATA / "plans"
    folder.mkdir(exist_ok=True)
    for family in FAMILIES:
        (folder / golden_file(family)).write_text(decode_plan(family))


if __name__ == "__main__":
    main()
