"""The part of the engine that the interface uses, as protocols: it works with anything that has the same surface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from app.token_count import CountingEngine, TextTokenizer
from inference.events import Event, KvMapGroup, KvStats, MemoryStats
from inference.sampling import Sampling
from inference.thinking import ThinkingMarks
from inference.twin_events import TwinEvent, TwinLane
from inference.vocabulary import Vocabulary

if TYPE_CHECKING:
    from inference.lora.adapter_set import AppliedAdapter
    from inference.op_times import OpTimes
    from inference.plan.explain import PlanRow

Message = Mapping[str, str]
S = TypeVar("S", bound="SequenceLike")


class InfoLike(Protocol):
    """What the interface shows of a loaded model; a structural view of the engine's own record."""

    @property
    def model(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def adapter(self) -> str: ...
    @property
    def device_reason(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def kv_layout(self) -> str: ...
    @property
    def context(self) -> int: ...
    @property
    def placement(self) -> str: ...
    @property
    def notices(self) -> tuple[str, ...]: ...
    @property
    def load_s(self) -> float: ...


class SequenceLike(Protocol):
    """One conversation's KV state."""

    def kv_stats(self) -> KvStats: ...
    def kv_map(self) -> tuple[KvMapGroup, ...]: ...
    def close(self) -> None: ...


class AdaptersLike(Protocol):
    """The LoRA adapters in use."""

    @property
    def applied(self) -> tuple[AppliedAdapter, ...]: ...


class TokenizerLike(TextTokenizer, Protocol):
    """What knows the tokens; the vocabulary is never changed and may be read by any thread."""

    @property
    def vocabulary(self) -> Vocabulary: ...


class RepliesLike(Protocol):
    """Replies that are generated at once; `stop` ends one of them, and may be called from any thread."""

    def __iter__(self) -> Iterator[tuple[int, Event]]: ...
    def stop(self, index: int, /) -> None: ...


class EngineLike(CountingEngine, Protocol[S]):
    """The part of `inference.Engine` that the interface uses."""

    @property
    def info(self) -> InfoLike: ...
    @property
    def tokenizer(self) -> TokenizerLike: ...
    @property
    def thinking(self) -> ThinkingMarks | None: ...
    @property
    def adapters(self) -> AdaptersLike: ...
    def set_loras(self, loras: Sequence[tuple[str, float]], /) -> None: ...
    def render(self, messages: Sequence[Message], /) -> str: ...
    def sequence(self, kv: str | None = None) -> S: ...
    def generate(
        self,
        prompt: Any,
        sampling: Sampling,
        /,
        max_tokens: int | None = None,
        *,
        sequence: S | None = None,
        begun: str = "",
    ) -> Iterator[Event]: ...
    def generate_many(
        self,
        prompts: Sequence[Any],
        sampling: Sequence[Sampling],
        max_tokens: int | None,
        sequences: Sequence[S | None],
        /,
    ) -> RepliesLike: ...
    def twin(self, prompt: Any, lanes: tuple[TwinLane, TwinLane], max_tokens: int | None, /) -> Iterator[TwinEvent]: ...
    def cancel(self) -> None: ...
    def plan(self, phase: Literal["decode", "prefill"], /) -> list[PlanRow]: ...
    def time_ops(self, phase: Literal["decode", "prefill"], sequence: S, /) -> OpTimes: ...
    def memory(self) -> MemoryStats: ...
    def close(self) -> None: ...
