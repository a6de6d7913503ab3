"""What is typed after `/twin`: in what the second lane differs from the chat as it is."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from app.completion import Choice, matching
from app.lora_command import UnclearLora, parse_lora
from app.options import SAMPLING_NAMES, model_options, request_options
from inference.kv.names import SUMMARIES

if TYPE_CHECKING:
    from inference.lora.adapter_set import AppliedAdapter

DIFFERENCES: Mapping[str, str] = {
    "kv": "another layout of the KV cache",
    "temperature": "other sampling: 0 is greedy",
    "seed": "other sampling: another draw",
    "top_k": "other sampling",
    "top_p": "other sampling",
    "min_p": "other sampling",
    "lora": "PATH=0.5: an adapter, or another strength of one",
    "dtype": "other storage; loads the model a second time",
    "weights": "other storage; loads the model a second time",
    "kernels": "prefer:NAME or force:NAME; loads the model a second time",
    "device": "the other device; loads the model a second time",
    "gpu_layers": "how many layers run on the GPU; loads the model a second time",
    "kv_device": "where keys and values lie; loads the model a second time",
    "model": "a second model",
}
"""What a second lane can differ in, and what that is."""

_DTYPES = {"f32": "activations and KV in f32", "f16": "activations and KV in f16"}
_DEVICES = {"cpu": "the processor", "webgpu": "the GPU"}
_OF_ENGINE = ("dtype", "weights", "kernels", "device", "gpu_layers", "kv_device")


def differences(typed: str) -> Iterable[Choice]:
    """Completes the argument of `/twin`: names of differences, layouts, and `off`."""
    before, space, word = typed.rpartition(" ")
    name, equals, value = word.partition("=")
    values: Mapping[str, Mapping[str, str]] = {
        "kv": SUMMARIES,
        "dtype": _DTYPES,
        "device": _DEVICES,
        "kv_device": _DEVICES,
    }
    if equals:
        known = values.get(name, {})
        return [Choice(f"{before}{space}{name}={each} ", each, known[each]) for each in matching(known, value)]
    off = [] if space else [Choice("off", "off", "one reply to each message again")] if "off".startswith(word) else []
    found = [Choice(f"{before}{space}{each}=", f"{each}=", DIFFERENCES[each]) for each in matching(DIFFERENCES, word)]
    return [*found, *off]


class UnclearTwin(Exception):
    """What was typed cannot be done, and why."""


@dataclass(frozen=True)
class TwinChanges:
    """In what a lane differs: `words` as they were typed. What is empty or None is as in the other lane.

    `engine` are options of Engine.open that need an engine of their own, `loras` adapters by path or name with their
    strengths, `sampling` fields of Sampling.
    """

    words: str
    model: str = ""
    kv: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    loras: tuple[tuple[str, float | None], ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)


def parse_twin(argument: str, loaded: Sequence[AppliedAdapter]) -> TwinChanges:
    """The differences out of `kv=tiered-int4 temperature=1.2`; `loaded` are the adapters in use.

    Values are those of the command line's options; one with spaces may stand in quotes. Raises UnclearTwin.
    """
    try:
        pairs = [part.partition("=") for part in shlex.split(argument)]
    except ValueError as error:
        raise UnclearTwin(f"/twin: {error}, in {argument}") from error
    loras: dict[str, float | None] = {}
    flags = []
    for name, equals, value in pairs:
        if name not in DIFFERENCES or not equals:
            shown = name + equals + value
            raise UnclearTwin(f"/twin takes NAME=VALUE of {', '.join(DIFFERENCES)}; or off; not {shown}.")
        if name == "lora":
            try:
                loras |= dict(parse_lora(value, loaded))
            except UnclearLora as error:
                raise UnclearTwin(str(error)) from error
        else:
            flags.append(f"--{name.replace('_', '-')}={value}")
    given = vars(_Parser(parents=[model_options(), request_options()], add_help=False).parse_args(flags))
    return TwinChanges(
        words=" ".join(name + equals + value for name, equals, value in pairs),
        model=given.get("model", ""),
        kv=given.get("kv"),
        engine={name: given[name] for name in _OF_ENGINE if name in given},
        loras=tuple(loras.items()),
        sampling={name: given[name] for name in SAMPLING_NAMES if name in given},
    )


class _Parser(argparse.ArgumentParser):
    """Raises what the command line would print."""

    def error(self, message: str) -> NoReturn:
        raise UnclearTwin("/twin: " + message.removeprefix("argument --"))
