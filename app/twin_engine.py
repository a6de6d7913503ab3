"""The second lane of twin turns: an engine of its own only where that cannot be helped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from app.engine_protocol import EngineLike, InfoLike, Message, SequenceLike
from app.twin_command import TwinChanges
from inference.sampling import Sampling
from inference.twin_events import Divergence, KlDivergence, NoKlDivergence, TwinEvent, TwinLane

if TYPE_CHECKING:
    from inference.engine import Engine
    from inference.sequence import Sequence


@dataclass(frozen=True)
class SetTwin:
    """Answer in a second lane too, with these changes, or in one lane again (None)."""

    changes: TwinChanges | None


@dataclass(frozen=True)
class GenerateTwin:
    """Answer `messages` in both lanes; the events carry `number` and the place of the lane."""

    number: int
    messages: tuple[Message, ...]
    sampling: Sampling
    max_tokens: int | None = None


@dataclass(frozen=True)
class TwinSet:
    """Turns have a second lane from now on, or no more (`changes` None).

    `info` is that of its engine, which is the chat's unless it is its `own`; `layout` that of its KV cache.
    """

    changes: TwinChanges | None
    info: InfoLike | None = None
    layout: str = ""
    own: bool = False


@dataclass(frozen=True)
class GapEvent:
    """How far the lanes that `GenerateTwin.number` asked for are apart."""

    number: int
    event: Divergence | KlDivergence | NoKlDivergence


class SecondLane:
    """What the second lane runs on. It belongs to the engine's thread."""

    def __init__(
        self,
        changes: TwinChanges,
        engine: EngineLike[Any],
        sequence: SequenceLike,
        strengths: tuple[tuple[str, float], ...],
        open_own: Callable[..., EngineLike[Any]],
    ) -> None:
        """A lane beside that of `engine` and `sequence`, with `strengths` of adapters by path.

        It shares the engine where only its KV layout, its sampling or strengths of adapters differ. Else `open_own`
        opens one, given options of Engine.open, in the memory that the chat's engine leaves. Raises what that raises.
        """
        in_use = {str(each.adapter.path) for each in engine.adapters.applied}
        self.changes = changes
        self.own = bool(changes.model or changes.engine or in_use != {path for path, _ in strengths})
        self._loras = strengths if changes.loras and not self.own else None
        self.engine, self._sequence = engine, sequence
        if self.own:
            taken = _taken(engine, sequence, changes)
            self.engine = open_own(**changes.engine, loras=strengths, taken=taken)
        self._sequence = self.engine.sequence() if self.own else engine.sequence(changes.kv)

    def told(self) -> TwinSet:
        """What the interface has to know of it."""
        return TwinSet(self.changes, self.engine.info, self._sequence.kv_stats().layout, self.own)

    def events(self, engine: EngineLike[Any], sequence: SequenceLike, command: GenerateTwin) -> Iterator[TwinEvent]:
        """Answer in both lanes, the first one being that of the chat."""
        second = replace(command.sampling, **self.changes.sampling)
        lanes = (
            _lane(engine, sequence, command.sampling, None),
            _lane(self.engine, self._sequence, second, self._loras),
        )
        return engine.twin(list(command.messages), lanes, command.max_tokens)

    def close(self) -> None:
        """Give back its memory."""
        if self.own:
            self.engine.close()
        else:
            self._sequence.close()


def _taken(engine: EngineLike[Any], sequence: SequenceLike, changes: TwinChanges) -> int:
    """Bytes that the chat needs of the memory in which the second lane's engine is to be."""
    if changes.engine.get("device", engine.info.device) != engine.info.device:
        return 0
    memory, kv = engine.memory(), sequence.kv_stats()
    if memory.bytes_by_device:
        return memory.bytes_by_device[engine.info.device] + kv.capacity_bytes - kv.allocated_bytes
    return memory.weights_bytes + memory.scratch_bytes + memory.staging_bytes + kv.capacity_bytes


def _lane(
    engine: EngineLike[Any],
    sequence: SequenceLike,
    sampling: Sampling,
    loras: tuple[tuple[str, float], ...] | None,
) -> TwinLane:
    # Only the engine that runs the lanes has to be a real one.
    return TwinLane(cast("Engine", engine), cast("Sequence", sequence), sampling, loras)
