"""What the engine tells its caller while it works: frozen records, safe to pass between threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "context", "cancelled"]


@dataclass(frozen=True)
class Timings:
    """Seconds and rates of one load or one reply. Rates are tokens per second; 0 means not yet measured."""

    load_s: float = 0.0
    prefill_s: float = 0.0
    prefill_tps: float = 0.0
    decode_s: float = 0.0
    decode_tps: float = 0.0
    ttft_s: float = 0.0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True)
class MemoryStats:
    """Bytes by purpose. `limits` holds the device's own limits by WebGPU name (empty on the CPU).

    `bytes_by_device` tells of a model that is split between devices how much of it each holds.
    """

    device: str
    weights_by_format: Mapping[str, int] = field(default_factory=dict)
    weights_bytes: int = 0
    kv_bytes: int = 0
    scratch_bytes: int = 0
    staging_bytes: int = 0
    peak_bytes: int = 0
    host_peak_bytes: int = 0
    limits: Mapping[str, int] = field(default_factory=dict)
    bytes_by_device: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class KvGroupStats:
    """The layers of a KV cache that share a layout. `reason` says why they have it.

    `held_tokens` may be fewer than the sequence's where old ones are dropped. `used_bytes` are those of the
    tokens held, `allocated_bytes` what is set aside for them now, `capacity_bytes` what a full context takes.
    """

    layout: str
    reason: str
    layers: tuple[int, ...]
    held_tokens: int
    used_bytes: int
    allocated_bytes: int
    capacity_bytes: int


@dataclass(frozen=True)
class KvStats:
    """State of one sequence's KV cache: sums over its groups of layers. `layout` names their layouts."""

    layout: str
    tokens: int
    context: int
    used_bytes: int
    allocated_bytes: int
    capacity_bytes: int
    groups: tuple[KvGroupStats, ...] = ()


KV_STATES: Mapping[str, str] = {
    "k": "kept",
    "h": "hot",
    "c": "cold",
    "q": "quantised",
    "b": "basis row",
    "d": "difference",
    "s": "shared",
    "o": "outside the window",
    "f": "free",
}
"""The letters of KvMapGroup.cells. Kept, hot and basis rows are whole; shared ones other sequences hold too."""


@dataclass(frozen=True)
class KvMapGroup:
    """What stands in the places that a KV cache has set aside for `layers`, which share a layout and a window.

    `cells` has a letter of KV_STATES a place: for a `ring` its slots in order, else the positions of the
    conversation and then what is free. `full` is the number of places that a full context takes. Bytes are as in
    KvGroupStats, of these layers. `device` is where the cache lies, of a model that is split between devices.
    """

    layout: str
    layers: tuple[int, ...]
    window: int | None
    ring: bool
    cells: str
    full: int
    used_bytes: int
    allocated_bytes: int
    device: str = ""


@dataclass(frozen=True)
class Alternative:
    """A token that could have been chosen at a position, with its log-probability before sampling."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True)
class Loading:
    """Progress of a load or download: so much is `done` of `total`, which is 0 where it is unknown."""

    stage: str
    done: int
    total: int
    unit: Literal["bytes", "tensors"] = "bytes"


@dataclass(frozen=True)
class Prompted:
    """The prompt as the model gets it, as token ids; the first `reused` of them are in the KV cache already."""

    ids: tuple[int, ...]
    reused: int


@dataclass(frozen=True)
class Prefill:
    """Prompt tokens computed so far (`done` of `total`), after `reused` tokens found in the KV cache."""

    done: int
    total: int
    reused: int


@dataclass(frozen=True)
class StepSpans:
    """Seconds of one token's step.

    The thread that generates spends `encode_s` on commands for steps ahead, `wait_s` waiting for this step's result (on
    the CPU: computing it) and `sample_s` choosing the token on the host. In other threads, meanwhile, commands took
    `finish_s` to be finished and `submit_s` to be submitted. Where several go together, one token has the times of
    all.
    """

    encode_s: float = 0.0
    wait_s: float = 0.0
    sample_s: float = 0.0
    finish_s: float = 0.0
    submit_s: float = 0.0


@dataclass(frozen=True)
class TokenTimes:
    """Where the `wall_s` seconds between the token before and this one went; for the first, since its step began.

    `report_s` is what the caller did with the events since the token before, and figures; `step` follows; then came
    `text_s` for the token's text and alternatives. One thread does all that, so these add up to `wall_s`.
    """

    wall_s: float = 0.0
    report_s: float = 0.0
    step: StepSpans = field(default_factory=StepSpans)
    text_s: float = 0.0


@dataclass(frozen=True)
class Token:
    """One sampled token. `text` is what it adds to the reply, empty while UTF-8 or a stop string is undecided.

    `id` is -1 for text that was held back and is flushed at the end of a reply.
    """

    id: int
    text: str
    logprob: float
    alternatives: tuple[Alternative, ...] = ()
    times: TokenTimes = field(default_factory=TokenTimes)


@dataclass(frozen=True)
class Finished:
    """The end of a reply."""

    reason: FinishReason
    timings: Timings


@dataclass(frozen=True)
class Notice:
    """Something the person should know: a fallback, a repaired template, a kernel replaced."""

    text: str


@dataclass(frozen=True)
class Stats:
    """A snapshot for the panels, sent about ten times a second while generating and once at the end."""

    memory: MemoryStats
    kv: KvStats
    timings: Timings
    kv_map: tuple[KvMapGroup, ...] = ()


Event = Loading | Prompted | Prefill | Token | Finished | Notice | Stats
