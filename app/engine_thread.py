"""The one thread that owns the GPU for the whole life of the app: commands in, frozen events out.

Commands wait in a queue. Events go to a deque that the interface drains on a timer, so that neither side ever waits
for the other. An error ends its command with a `Failed` event and never the thread.
"""

from __future__ import annotations

import gc
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from app.engine_protocol import EngineLike, InfoLike, Message, SequenceLike
from app.token_count import CountTokens, TokenCounter, TokensCounted
from inference.errors import Cancelled, GlasschatError
from inference.events import Event, Finished, KvMapGroup, KvStats, Loading, MemoryStats, Notice
from inference.sampling import Sampling
from inference.thinking import ThinkingMarks
from inference.vocabulary import Vocabulary

if TYPE_CHECKING:
    from inference.lora.adapter_set import AppliedAdapter
    from inference.op_times import OpTimes
    from inference.plan.explain import PlanRow

_log = logging.getLogger(__name__)

Progress = Callable[[Loading | Notice], None]


@dataclass(frozen=True)
class Load:
    """Load a model by name or path with a KV layout by name, in place of the one loaded now."""

    model: str
    kv: str = "auto"


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


Command = Load | Generate | GenerateMany | ChangeLoras | MeasureKernels


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
    """A model is ready. `source` and `layout` are what was asked for, `title` is what to call the model.

    `thinks` tells whether it can think before it answers.
    """

    source: str
    layout: str
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
    """A reply begins. `marks` enclose a thought; `thinking` says that the prompt has opened one already."""

    marks: ThinkingMarks | None
    thinking: bool


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
    | TokensCounted
    | Failed
)


class EngineThread:
    """Runs commands one after another on its own thread.

    `resolve` turns a model's name into a local path, fetching it if needed, and refuses a model or a KV layout that
    cannot be used; `open_engine` loads that path with that layout. Both report through the callback and stop when it
    raises `Cancelled`; `resolve` can also ask. `resolve_adapter` turns the name of a LoRA adapter into a local path in
    the same way. The old model is closed only once the new one's file is here, and before the new one is opened: two
    never share the memory.
    """

    def __init__(
        self,
        resolve: Callable[[str, str, Progress, Callable[[], bool]], str],
        open_engine: Callable[[str, str, Progress], EngineLike[Any]],
        resolve_adapter: Callable[[str, Progress, Callable[[], bool]], str],
    ) -> None:
        self._resolve = resolve
        self._resolve_adapter = resolve_adapter
        self._open = open_engine
        self._commands: queue.SimpleQueue[tuple[Command, threading.Event] | None] = queue.SimpleQueue()
        self._events: deque[AppEvent] = deque()
        self._stops: deque[threading.Event] = deque()
        self._engine: EngineLike[Any] | None = None
        self._sequence: SequenceLike | None = None
        self._counter = TokenCounter(self._events.append)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, command: Command) -> None:
        """Queue a command."""
        stop = threading.Event()
        self._stops.append(stop)
        self._commands.put((command, stop))

    def count(self, request: CountTokens) -> None:
        """Count tokens now, also while a reply is written; `TokensCounted` answers, unless this is asked again."""
        self._counter.ask(request)

    def drain(self) -> list[AppEvent]:
        """All events since the last call, oldest first."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def cancel(self) -> None:
        """Stop the running command and drop the waiting ones; each still ends with its own last event.

        What was changed of adapters while a reply was written does not go with the reply: only downloads are stopped.
        """
        for stop in tuple(self._stops):
            stop.set()
        if (engine := self._engine) is not None:
            engine.cancel()

    def shutdown(self, timeout: float = 5.0) -> None:
        """Cancel, close the engine and end the thread, waiting at most `timeout` seconds."""
        self.cancel()
        self._counter.close()
        self._commands.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (item := self._commands.get()) is not None:
            command, stop = item
            try:
                if stop.is_set() and not isinstance(command, ChangeLoras):
                    raise Cancelled("Cancelled before it began.")
                match command:
                    case Load():
                        self._load(command, stop)
                    case Generate():
                        self._generate(command, stop)
                    case GenerateMany():
                        self._generate_many(command, stop)
                    case ChangeLoras():
                        self._change_loras(command, stop)
                    case MeasureKernels():
                        self._measure(command)
            except Cancelled as error:
                self._events.append(Failed(command, str(error), cancelled=True))
            except GlasschatError as error:
                self._events.append(Failed(command, str(error)))
            except Exception as error:
                _log.exception("%s failed", type(command).__name__)
                text = f"Unexpected error, {type(error).__name__}: {error}. The log file has the details."
                self._events.append(Failed(command, text))
            finally:
                self._stops.popleft()
        self._close()

    def _progress(self, what: str, stop: threading.Event) -> Progress:
        def progress(event: Loading | Notice) -> None:
            if stop.is_set():
                raise Cancelled(f"Loading {what} was cancelled.")
            self._events.append(event)

        return progress

    def _load(self, command: Load, stop: threading.Event) -> None:
        progress = self._progress(command.model, stop)
        self._events.append(LoadStarted(command.model))
        path = self._resolve(command.model, command.kv, progress, stop.is_set)
        if self._engine is not None:
            memory, name = self._engine.memory(), self._engine.info.model
            self._close()
            freed = memory.weights_bytes + memory.kv_bytes + memory.scratch_bytes + memory.staging_bytes
            self._events.append(Unloaded(name, freed))
        engine = self._open(path, command.kv, progress)
        try:
            sequence = engine.sequence()
            plans = tuple(engine.plan("decode")), tuple(engine.plan("prefill"))
            loaded = Loaded(
                command.model,
                command.kv,
                engine.info.model,
                engine.info,
                engine.tokenizer.vocabulary,
                engine.thinking is not None,
                *plans,
                engine.memory(),
                sequence.kv_stats(),
                sequence.kv_map(),
            )
        except BaseException:
            engine.close()
            raise
        self._engine, self._sequence = engine, sequence
        self._counter.use(engine)
        # What stays until the model goes need not be looked through for garbage: that would hold up keys for 0.1 s.
        gc.freeze()
        self._events.append(loaded)

    def _begin(self, messages: tuple[Message, ...]) -> tuple[EngineLike[Any], ReplyStarted]:
        """The engine, and what there is to know of its replies to `messages`."""
        if self._engine is None:
            raise GlasschatError("No model is loaded; choose one from the menu.")
        marks = self._engine.thinking
        thinking = marks is not None and marks.opened_by(self._engine.render(messages))
        return self._engine, ReplyStarted(marks, thinking)

    def _generate(self, command: Generate, stop: threading.Event) -> None:
        engine, started = self._begin(command.messages)
        self._events.append(ReplyEvent(command.reply, started))
        events = engine.generate(
            list(command.messages),
            command.sampling,
            max_tokens=command.max_tokens,
            sequence=self._sequence,
            begun=command.begun,
        )
        for event in events:
            self._events.append(ReplyEvent(command.reply, event))
            # The engine hears of it directly; this catches a stop that came before it began to listen.
            if stop.is_set() and not isinstance(event, Finished):
                engine.cancel()

    def _generate_many(self, command: GenerateMany, stop: threading.Event) -> None:
        engine, started = self._begin(command.messages)
        count = len(command.samplings)
        for index in range(count):
            self._events.append(ManyEvent(command.number, index, started))
        # The conversation's own sequence has most of the prompt already: one of them goes on there.
        sequences = [self._sequence, *[None] * (count - 1)]
        prompts = [list(command.messages)] * count
        for index, event in engine.generate_many(prompts, command.samplings, command.max_tokens, sequences):
            self._events.append(ManyEvent(command.number, index, event))
            if stop.is_set() and not isinstance(event, Finished):
                engine.cancel()

    def _change_loras(self, command: ChangeLoras, stop: threading.Event) -> None:
        engine, sequence = self._engine, self._sequence
        if engine is None or sequence is None:
            raise GlasschatError("No model is loaded; an adapter needs the model that it was made for.")
        strengths = {str(each.adapter.path): each.strength for each in engine.adapters.applied}
        for name, strength in command.strengths:
            path = name if name in strengths else self._resolve_adapter(name, self._progress(name, stop), stop.is_set)
            if strength is None:
                strengths.pop(path, None)
            else:
                strengths[path] = strength
        engine.set_loras(tuple(strengths.items()))
        plans = tuple(engine.plan("decode")), tuple(engine.plan("prefill"))
        self._events.append(LorasChanged(engine.adapters.applied, *plans, engine.memory(), sequence.kv_stats()))

    def _measure(self, command: MeasureKernels) -> None:
        if self._engine is None or self._sequence is None:
            raise GlasschatError("No model is loaded; there are no kernels to time.")
        self._events.append(KernelsMeasured(self._engine.time_ops(command.phase, self._sequence)))

    def _close(self) -> None:
        self._counter.use(None)
        gc.unfreeze()
        engine, self._engine, self._sequence = self._engine, None, None
        if engine is not None:
            engine.close()
