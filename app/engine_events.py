"""What the engine's thread is asked for, and what it tells: frozen commands and events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from app.engine_protocol import InfoLike, Message
from app.token_count import TokensCounted
from app.twin_engine import GapEvent, GenerateTwin, SetTwin, TwinSet
from inference.events import Event, KvMapGroup, KvStats, Loading, MemoryStats, Notice
from inference.sampling import Sampling
from inference.thinking import ThinkingMarks
from inference.vocabulary import Vocabulary

if TYPE_CHECKING:
    from inference.lora.adapter_set import AppliedAdapter
    from inference.op_times import OpTimes
    from inference.plan.explain import PlanRow


@dataclass(frozen=True)
class Load:
    """Load a model by name or path with a KV layout by name, in place of the one loaded now.

    `gpu_layers` of its layers go to WebGPU, as many as fit where that is None.
    """

    model: str
    kv: str = "auto"
    gpu_layers: int | None = None


@dataclass(frozen=True)
class Generate:
    """Answer `messages`; the events of the reply carry `reply`. `begun` is what there is of the answer already."""

    reply: int
    messages: tuple[Message, ...]
    sampling: Sampling
    max_tokens: int | None = None
    begun: str = ""


@dataclass(frozen=True)
class GenerateMany:
    """Answer `messages` with each of `samplings` at once; the events carry `number` and the place of the sampling."""

    number: int
    messages: tuple[Message, ...]
    samplings: tuple[Sampling, ...]
    max_tokens: int | None = None


@dataclass(frozen=True)
class ChangeLoras:
    """Give LoRA adapters these strengths; None drops one, a name that is not loaded loads one. All others stay.

    A name is the path of a loaded adapter, or whatever `resolve_adapter` takes.
    """

    strengths: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True)
class MeasureKernels:
    """Time each operation of that plan once."""

    phase: Literal["decode", "prefill"]


Command = Load | Generate | GenerateMany | SetTwin | GenerateTwin | ChangeLoras | MeasureKernels


@dataclass(frozen=True)
class LoadStarted:
    """A load has begun; `Loading` and `Notice` events follow, then `Loaded` or `Failed`."""

    model: str


@dataclass(frozen=True)
class Unloaded:
    """The model that was loaded is closed and its memory given back."""

    model: str
    freed_bytes: int


@dataclass(frozen=True)
class Loaded:
    """A model is ready. `source`, `layout` and `gpu_layers` are what was asked for, `title` is what to call the model.

    `thinks` tells whether it can think before it answers.
    """

    source: str
    layout: str
    gpu_layers: int | None
    title: str
    info: InfoLike
    vocabulary: Vocabulary
    thinks: bool
    decode: tuple[PlanRow, ...]
    prefill: tuple[PlanRow, ...]
    memory: MemoryStats
    kv: KvStats
    kv_map: tuple[KvMapGroup, ...]


@dataclass(frozen=True)
class LorasChanged:
    """These adapters are in use from now on, with these plans and these bytes."""

    adapters: tuple[AppliedAdapter, ...]
    decode: tuple[PlanRow, ...]
    prefill: tuple[PlanRow, ...]
    memory: MemoryStats
    kv: KvStats


@dataclass(frozen=True)
class KernelsMeasured:
    """What the operations of a plan took."""

    times: OpTimes


@dataclass(frozen=True)
class ReplyStarted:
    """A reply begins, or goes on after `begun`.

    `marks` enclose a thought; `thinking` says that the prompt has opened one already.
    """

    marks: ThinkingMarks | None
    thinking: bool
    begun: str = ""


@dataclass(frozen=True)
class ReplyEvent:
    """One event of the reply that `Generate.reply` numbered: `ReplyStarted`, then those of the engine."""

    reply: int
    event: ReplyStarted | Event


@dataclass(frozen=True)
class ManyEvent:
    """One event of the reply `index` of those that `GenerateMany.number` asked for."""

    number: int
    index: int
    event: ReplyStarted | Event


@dataclass(frozen=True)
class Failed:
    """A command ended with an error. `cancelled` means that the person asked for it."""

    command: Command
    message: str
    cancelled: bool = False


AppEvent = (
    LoadStarted
    | Loading
    | Notice
    | Unloaded
    | Loaded
    | LorasChanged
    | KernelsMeasured
    | ReplyEvent
    | ManyEvent
    | TwinSet
    | GapEvent
    | TokensCounted
    | Failed
)
