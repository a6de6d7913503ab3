"""Plans as text. Run as a module, it writes the files that test_explain.py and test_place.py compare with."""

from __future__ import annotations

from collections.abc import Sequence

from inference.placement import first_layers
from inference.plan.build import build
from inference.plan.explain import PlanRow
from inference.plan.fuse import fuse
from inference.plan.ops import DEVICES, Device
from inference.plan.place import moved_bytes, place
from tests.conftest import DATA
from tests.inference.opening import open_numpy, open_store

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


def placed_file(family: str, kv_device: Device) -> str:
    """The name of the file in tests/data/plans."""
    return f"{family}-placed-kv-{kv_device}.txt"


def placed_plan(family: str, kv_device: Device) -> str:
    """A prefill step of the tiny model in f16 with two layers on WebGPU: what runs where, and what is copied."""
    config, store = open_store(DATA / "tiny" / family / "gguf" / "model-f16.gguf")
    fused = fuse(build(config, 8, "last", sample=True, dtype="f16", kv_dtype="f16"), store.formats)
    lines = []
    for op in place(fused, first_layers(config.num_layers, 2, kv_device)).ops:
        reads = ", ".join(f"{tensor.name} {tensor.dtype}" for tensor in op.inputs)
        moved = f", {moved_bytes(op)} bytes a token" if op.kind == "copy" else ""
        lines.append(f"{op.device} {op.kind}: {reads} -> {op.output.name} {op.output.dtype}{moved}\n")
    return "".join(lines)


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
        for device in DEVICES:
            (folder / placed_file(family, device)).write_text(placed_plan(family, device))


if __name__ == "__main__":
    main()
