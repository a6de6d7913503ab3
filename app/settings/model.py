"""The settings: one frozen record, each field with what a person needs to know to set it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from inference.kv.names import SUMMARIES
from inference.sampling import Sampling

Effect = Literal["at once", "with the next reply", "at the next start"]


@dataclass(frozen=True)
class Spec:
    """What a setting means and which values it takes."""

    title: str
    help: str
    group: str
    effect: Effect
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    """A lower bound that the value itself may not have."""
    most: float | None = None
    long: bool = False
    """Text that may have several lines."""
    implied_by: tuple[str, str] | None = None
    """An environment variable other than the setting's own, and the value that its presence stands for."""


def _setting(default: Any, title: str, help: str, group: str, effect: Effect, **more: Any) -> Any:
    metadata = {"spec": Spec(title, help, group, effect, **more)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


_MODEL: Any = {"group": "Model", "effect": "at the next start"}
_SAMPLING: Any = {"group": "Sampling", "effect": "with the next reply"}
_TALK: Any = {"group": "Conversation", "effect": "at the next start"}
_LOOKS: Any = {"group": "Looks", "effect": "at once"}
_PANELS: Any = {"group": "Panels", "effect": "at the next start"}
_SAMPLED = Sampling()


@dataclass(frozen=True)
class Settings:
    """Everything that can be set. None means that it is left to the model or to chance."""

    model: str = _setting("", "Model", "A name or path to start with; the last one used is kept here", **_MODEL)
    device: str = _setting("auto", "Device", "Where models run", choices=("auto", "webgpu", "cpu"), **_MODEL)
    kv: str = _setting("auto", "KV layout", "How keys and values are kept", choices=tuple(SUMMARIES), **_MODEL)
    context: int | None = _setting(None, "Context", "Tokens; empty is what model and memory allow", least=1, **_MODEL)
    dtype: str = _setting(
        "auto", "Dtype", "What activations and KV are stored in", choices=("auto", "f32", "f16"), **_MODEL
    )

    gpu_layers: int | None = _setting(
        None, "GPU layers", "Layers on WebGPU, the rest on the CPU; empty is as many as fit", least=0, **_MODEL
    )
    kv_device: str = _setting(
        "webgpu", "KV device", "Where keys and values of layers on WebGPU are", choices=("webgpu", "cpu"), **_MODEL
    )
    gpu_memory: int | None = _setting(
        None, "GPU memory", "Bytes that may be taken there; empty is no limit", least=1, **_MODEL
    )

    temperature: float = _setting(
        _SAMPLED.temperature, "Temperature", "0 always takes the likeliest token", least=0, **_SAMPLING
    )
    top_k: int = _setting(
        _SAMPLED.top_k, "Top-k", "Only so many of the likeliest tokens; 0 is off", least=0, **_SAMPLING
    )
    top_p: float = _setting(
        _SAMPLED.top_p,
        "Top-p",
        "Only the likeliest tokens that share this probability; 1 is off",
        above=0,
        most=1,
        **_SAMPLING,
    )
    min_p: float = _setting(
        _SAMPLED.min_p,
        "Min-p",
        "No token below this share of the likeliest one's; 0 is off",
        least=0,
        most=1,
        **_SAMPLING,
    )
    repetition: float = _setting(
        _SAMPLED.repetition, "Repetition penalty", "Above 1 makes tokens seen before less likely", above=0, **_SAMPLING
    )
    frequency: float = _setting(
        _SAMPLED.frequency, "Frequency penalty", "Off a token's logit for each time it was seen", **_SAMPLING
    )
    presence: float = _setting(
        _SAMPLED.presence, "Presence penalty", "Off a token's logit once it was seen", **_SAMPLING
    )
    seed: int | None = _setting(
        _SAMPLED.seed, "Seed", "The same seed gives the same reply; empty draws one", **_SAMPLING
    )
    max_tokens: int | None = _setting(None, "Longest reply", "Tokens; empty is no limit", least=1, **_SAMPLING)

    system: str = _setting("", "System prompt", "Told to the model first in each conversation", long=True, **_TALK)
    history: bool = _setting(True, "History", "Keep conversations on this machine", **_TALK)

    theme: str = _setting(
        "auto",
        "Theme",
        "auto is glass, or glass-16 in a terminal of 16 colours",
        implied_by=("NO_COLOR", "glass-16"),
        **_LOOKS,
    )
    reduced_motion: bool = _setting(False, "Reduced motion", "No animation, no blinking, slower figures", **_LOOKS)

    open_panels: tuple[str, ...] = _setting(
        (), "Open panels", "Those open at the start, with commas between", **_PANELS
    )
    sidebar: bool = _setting(False, "Sidebar", "Show the conversations beside the chat", **_PANELS)
    panel_sizes: Mapping[str, int] = _setting({}, "Panel sizes", "Rows, or columns", least=3, most=400, **_PANELS)
    keys: Mapping[str, str] = _setting({}, "Keys", "Keys with commas between", group="Keys", effect="at once")


def with_model(settings: Settings, name: str) -> Settings:
    """The settings with that model as the last one used; a path is made absolute."""
    path = Path(name).expanduser()
    return replace(settings, model=str(path.absolute()) if path.exists() else name)
