"""The options of the command line that `chat` and `chat ask` share, and what they become."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from typing import Any

from inference.kv.names import LAYOUTS, SUMMARIES
from inference.sampling import Sampling

SAMPLING_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition", "frequency", "presence", "seed")
"""The settings that are fields of Sampling."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class EngineOptions:
    """How a model is opened: the keyword arguments of `Engine.open`."""

    device: str = "auto"
    kv: str = "auto"
    context: int | None = None
    dtype: str = "auto"
    kernels: tuple[str, ...] = ()
    gpu_memory: int | None = None
    extend_context: bool = False
    weights: str = "auto"
    loras: tuple[tuple[str, float], ...] = ()
    taken: int = 0
    gpu_layers: int | None = None
    kv_device: str = "webgpu"


def model_options(several_layouts: bool = False) -> argparse.ArgumentParser:
    """A parent parser with the options that say how a model is opened.

    They have no defaults, so that they may stand before a subcommand as well as after it. With `several_layouts`,
    --kv also takes a list, which becomes a tuple, or "all".
    """
    parser = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    group = parser.add_argument_group("model")
    group.add_argument(
        "-m", "--model", help="a catalogue name, a GGUF file, a folder, or org/repo[:QUANT][@REVISION] on the hub"
    )
    group.add_argument("--device", choices=("auto", "webgpu", "cpu"), help="where it runs (default: auto)")
    if several_layouts:
        compare = "layout of the KV cache (default: auto); several, or all, are compared with each other"
        group.add_argument("--kv", type=_layouts, metavar="LAYOUT[,LAYOUT]|all", help=compare)
    else:
        group.add_argument("--kv", choices=tuple(SUMMARIES), help="layout of the KV cache (default: auto)")
    group.add_argument("--context", type=positive, metavar="N", help="context length in tokens")
    group.add_argument("--extend-context", action="store_true", help="allow a context beyond the model's own limit")
    group.add_argument("--dtype", choices=("auto", "f32", "f16"), help="storage of activations and KV (default: auto)")
    group.add_argument("--gpu-memory", type=_bytes, metavar="BYTES", help="use at most so much; K, M or G may follow")
    group.add_argument(
        "--gpu-layers",
        type=_layers,
        metavar="N|auto",
        help="run the first N layers on WebGPU, the rest on the CPU (default: auto, as many as fit)",
    )
    group.add_argument(
        "--kv-device",
        choices=("webgpu", "cpu"),
        help="where the KV cache and the attention of layers on WebGPU are (default: webgpu)",
    )
    group.add_argument(
        "--weights",
        choices=("auto", "q8", "q4", "f16"),
        help="what float matrices become at load (default: as they are)",
    )
    group.add_argument(
        "--lora",
        action="append",
        type=lora,
        dest="loras",
        metavar="PATH[=SCALE]",
        help="a LoRA adapter: a PEFT folder or a GGUF file, at a strength (1); may be repeated",
    )
    group.add_argument(
        "--kernels", action="append", type=_kernel, metavar="prefer:NAME|force:NAME", help="choose a kernel variant"
    )
    return parser


def request_options() -> argparse.ArgumentParser:
    """A parent parser with the options that say what is sampled; without defaults, like `model_options`."""
    parser = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    group = parser.add_argument_group("reply")
    default = Sampling()
    group.add_argument("--max-tokens", type=positive, metavar="N", help="at most so many tokens")
    group.add_argument(
        "--temperature", type=_not_negative, metavar="T", help=f"0 is greedy (default: {default.temperature})"
    )
    group.add_argument("--top-k", type=_count, metavar="K", help=f"0 is off (default: {default.top_k})")
    group.add_argument("--top-p", type=_share, metavar="P", help=f"1 is off (default: {default.top_p})")
    group.add_argument("--min-p", type=_share, metavar="P", help=f"0 is off (default: {default.min_p})")
    group.add_argument("--seed", type=_whole, metavar="S", help="the same seed gives the same text on the same device")
    group.add_argument("--stop", action="append", metavar="TEXT", help="end the reply before it; may be repeated")
    group.add_argument("--system", metavar="TEXT", help="the system prompt")
    return parser


def engine_options(given: dict[str, Any]) -> EngineOptions:
    """The engine's options out of the parsed arguments."""
    names = EngineOptions.__dataclass_fields__
    options = {name: value for name, value in given.items() if name in names}
    return EngineOptions(**options | {name: tuple(given.get(name, ())) for name in ("kernels", "loras")})


def sampling_options(given: dict[str, Any]) -> Sampling:
    """The sampling out of the parsed arguments."""
    options = {name: given[name] for name in SAMPLING_NAMES if name in given}
    return Sampling(**options, stop=tuple(given.get("stop", ())))


def _layouts(text: str) -> str | Sequence[str]:
    """One name as it is, a list or "all" as a tuple."""
    names = LAYOUTS if text == "all" else tuple(text.split(","))
    if unknown := [name for name in names if name not in SUMMARIES]:
        raise argparse.ArgumentTypeError(f"there is no layout {unknown[0]!r}: all, or some of {', '.join(SUMMARIES)}")
    return names if len(names) > 1 else names[0]


def counts(least: int) -> Callable[[str], tuple[int, ...]]:
    """The type of an option that takes whole numbers of at least so much, with commas between."""
    return lambda text: tuple(_whole(part, least) for part in text.split(","))


def positive(text: str) -> int:
    """The type of an option that takes a whole number from 1 on."""
    return _whole(text, 1)


def _count(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int | None = None) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if least is not None and number < least:
        raise argparse.ArgumentTypeError(f"{text} is not at least {least}")
    return number


def _layers(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of layers nor auto")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return nan


def _not_negative(text: str) -> float:
    if not 0 <= (number := _number(text)) < inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return number


def _share(text: str) -> float:
    if not 0 <= (number := _number(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and 1")
    return number


def _bytes(text: str) -> int:
    digits = text.upper().removesuffix("IB").removesuffix("B")
    unit = digits[-1:] if digits[-1:] in "KMG" else ""
    try:
        return int(float(digits.removesuffix(unit)) * _UNITS[unit])
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes such as 2G or 536870912") from None


def lora(text: str) -> tuple[str, float]:
    """An adapter and its strength out of PATH=SCALE, or PATH alone for 1; paths may contain "=" themselves."""
    path, _, scale = text.rpartition("=")
    try:
        strength = float(scale) if path else 1.0
    except ValueError:
        return text, 1.0
    if not isfinite(strength):
        raise argparse.ArgumentTypeError(f"{text}: the scale is {scale}, expected a number such as 0.5")
    return path or text, strength


def _kernel(text: str) -> str:
    way, _, name = text.partition(":")
    if way not in ("prefer", "force") or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is neither prefer:NAME nor force:NAME")
    return text
