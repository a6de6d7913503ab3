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
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from app.engine_events import (
    AppEvent,
    ChangeLoras,
    Command,
    Failed,
    Generate,
    GenerateMany,
    KernelsMeasured,
    Load,
    Loaded,
    LoadStarted,
    LorasChanged,
    ManyEvent,
    MeasureKernels,
    ReplyEvent,
    ReplyStarted,
    Unloaded,
)
from app.engine_protocol import EngineLike, Message, RepliesLike, SequenceLike
from app.token_count import CountTokens, TokenCounter
from app.twin_engine import GapEvent, GenerateTwin, SecondLane, SetTwin, TwinSet
from inference.errors import Cancelled, GlasschatError
from inference.events import Finished, Loading, Notice
from inference.twin_events import LaneEvent

_log = logging.getLogger(__name__)

Progress = Callable[[Loading | Notice], None]


class EngineThread:
    """Runs commands one after another on its own thread.

    `resolve` turns a model's name into a local path, fetching it if needed, and refuses a model or a KV layout that
    cannot be used; `open_engine` loads that path with that layout, and with further options of Engine.open by name.
    Both report through the callback and stop when it raises `Cancelled`; `resolve` can also ask. `resolve_adapter`
    turns the name of a LoRA adapter into a local path in the same way. The old model is closed only once the new one's
    file is here, and before the new one is opened: two never share the memory, but for the lanes of a twin.
    """

    def __init__(
        self,
        resolve: Callable[[str, str, Progress, Callable[[], bool]], str],
        open_engine: Callable[..., EngineLike[Any]],
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
        self._second: SecondLane | None = None
        self._replies: RepliesLike | None = None
        self._kv = "auto"
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

    def stop_reply(self, index: int) -> None:
        """Stop one of the replies that are written at once; the others go on."""
        if (replies := self._replies) is not None:
            replies.stop(index)

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
                    case SetTwin():
                        self._set_twin(command, stop)
                    case GenerateTwin():
                        self._generate_twin(command, stop)
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
        self._end_twin()
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
            self._end_twin()
            memory, name = self._engine.memory(), self._engine.info.model
            self._close()
            freed = memory.weights_bytes + memory.kv_bytes + memory.scratch_bytes + memory.staging_bytes
            self._events.append(Unloaded(name, freed))
        engine = self._open(path, command.kv, progress, gpu_layers=command.gpu_layers)
        try:
            sequence = engine.sequence()
            plans = tuple(engine.plan("decode")), tuple(engine.plan("prefill"))
            loaded = Loaded(
                command.model,
                command.kv,
                command.gpu_layers,
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
        self._engine, self._sequence, self._kv = engine, sequence, command.kv
        self._counter.use(engine)
        # What stays until the model goes need not be looked through for garbage: that would hold up keys for 0.1 s.
        gc.freeze()
        self._events.append(loaded)

    def _loaded(self, else_told: str) -> tuple[EngineLike[Any], Any]:
        """The engine and the conversation's sequence; without a model, tells so, and what besides."""
        if self._engine is None or self._sequence is None:
            raise GlasschatError(f"No model is loaded; {else_told}")
        return self._engine, self._sequence

    def _generate(self, command: Generate, stop: threading.Event) -> None:
        engine, sequence = self._loaded("choose one from the menu.")
        self._events.append(ReplyEvent(command.reply, _started(engine, command.messages, command.begun)))
        events = engine.generate(
            list(command.messages),
            command.sampling,
            max_tokens=command.max_tokens,
            sequence=sequence,
            begun=command.begun,
        )
        for event in events:
            self._events.append(ReplyEvent(command.reply, event))
            # The engine hears of it directly; this catches a stop that came before it began to listen.
            if stop.is_set() and not isinstance(event, Finished):
                engine.cancel()

    def _generate_many(self, command: GenerateMany, stop: threading.Event) -> None:
        engine, sequence = self._loaded("choose one from the menu.")
        started, count = _started(engine, command.messages), len(command.samplings)
        for index in range(count):
            self._events.append(ManyEvent(command.number, index, started))
        # The conversation's own sequence has most of the prompt already: one of them goes on there.
        sequences = [sequence, *[None] * (count - 1)]
        prompts = [list(command.messages)] * count
        self._replies = engine.generate_many(prompts, command.samplings, command.max_tokens, sequences)
        for index, event in self._replies:
            self._events.append(ManyEvent(command.number, index, event))
            if stop.is_set() and not isinstance(event, Finished):
                engine.cancel()

    def _set_twin(self, command: SetTwin, stop: threading.Event) -> None:
        engine, sequence = self._loaded("lanes differ from the one that answers.")
        self._end_twin()
        if (changes := command.changes) is None:
            return
        path, kv = engine.info.path, changes.kv or self._kv
        progress = self._progress(changes.model or engine.info.model, stop)
        if changes.model:
            path = self._resolve(changes.model, kv, progress, stop.is_set)
        # The chat's adapters are for its own model.
        strengths = self._strengths(changes.loras, {} if changes.model else _in_use(engine), stop)
        open_own = partial(self._open, path, kv, progress)
        self._second = SecondLane(changes, engine, sequence, tuple(strengths.items()), open_own)
        self._events.append(self._second.told())

    def _end_twin(self) -> None:
        second, self._second = self._second, None
        if second is not None:
            second.close()
            self._events.append(TwinSet(None))

    def _generate_twin(self, command: GenerateTwin, stop: threading.Event) -> None:
        engine, sequence = self._loaded("choose one from the menu.")
        assert self._second is not None  # who asks for it has heard of it
        for index, each in enumerate((engine, self._second.engine)):
            self._events.append(ManyEvent(command.number, index, _started(each, command.messages)))
        for event in self._second.events(engine, sequence, command):
            if isinstance(event, LaneEvent):
                self._events.append(ManyEvent(command.number, event.lane, event.event))
            else:
                self._events.append(GapEvent(command.number, event))
            if stop.is_set():
                engine.cancel()

    def _change_loras(self, command: ChangeLoras, stop: threading.Event) -> None:
        engine, sequence = self._loaded("an adapter needs the model that it was made for.")
        engine.set_loras(tuple(self._strengths(command.strengths, _in_use(engine), stop).items()))
        plans = tuple(engine.plan("decode")), tuple(engine.plan("prefill"))
        self._events.append(LorasChanged(engine.adapters.applied, *plans, engine.memory(), sequence.kv_stats()))

    def _strengths(
        self, changes: Iterable[tuple[str, float | None]], strengths: dict[str, float], stop: threading.Event
    ) -> dict[str, float]:
        """Strengths by path after `changes`, which may name adapters that are to be fetched."""
        for name, strength in changes:
            path = name if name in strengths else self._resolve_adapter(name, self._progress(name, stop), stop.is_set)
            if strength is None:
                strengths.pop(path, None)
            else:
                strengths[path] = strength
        return strengths

    def _measure(self, command: MeasureKernels) -> None:
        engine, sequence = self._loaded("there are no kernels to time.")
        self._events.append(KernelsMeasured(engine.time_ops(command.phase, sequence)))

    def _close(self) -> None:
        self._counter.use(None)
        gc.unfreeze()
        engine, self._engine, self._sequence = self._engine, None, None
        if engine is not None:
            engine.close()


def _in_use(engine: EngineLike[Any]) -> dict[str, float]:
    """The strengths of an engine's adapters by path."""
    return {str(each.adapter.path): each.strength for each in engine.adapters.applied}


def _started(engine: EngineLike[Any], messages: tuple[Message, ...], begun: str = "") -> ReplyStarted:
    """What there is to know of a reply to `messages` before it begins."""
    marks = engine.thinking
    return ReplyStarted(marks, marks is not None and marks.opened_by(engine.render(messages)), begun)
