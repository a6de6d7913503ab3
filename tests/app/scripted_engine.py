"""An engine without a model: the same surface as `inference.Engine`, with text, speed and errors as scripted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from inference.errors import BadAdapter, Cancelled, LayoutUnavailable, ModelNotFound
from inference.events import (
    Alternative,
    Event,
    Finished,
    KvGroupStats,
    KvMapGroup,
    KvStats,
    Loading,
    MemoryStats,
    Notice,
    Prefill,
    Prompted,
    Stats,
    StepSpans,
    Timings,
    Token,
    TokenTimes,
)
from inference.lora.adapter import Adapter, LowRank
from inference.lora.adapter_set import AppliedAdapter
from inference.op_times import OpTimes
from inference.plan.explain import PlanRow
from inference.sampling import Sampling
from inference.thinking import ThinkingMarks
from inference.twin_events import TwinEvent, TwinLane
from inference.vocabulary import TokenType, Vocabulary
from tests.app.scripted_many import RepliesAtOnce
from tests.app.scripted_plan import lora_rows, plan_rows
from tests.app.scripted_twin import twin_replies

MIB = 1 << 20


@dataclass(frozen=True)
class Script:
    """What the scripted engine does. `tokens_per_s` 0 means as fast as it can, as are the first `burst` tokens; `error`
    is raised by `generate`.

    `many` are the pieces of replies that are generated at once, `twin` those of a second lane on the same engine;
    without any, each has `pieces`. `reason` is why a reply ends that nothing else ends. `thinking` marks thoughts;
    every prompt ends with `prompt_end`.
    """

    pieces: tuple[str, ...] = ("Hello", " there", "!")
    tokens_per_s: float = 0.0
    burst: int = 0
    many: tuple[tuple[str, ...], ...] = ()
    twin: tuple[str, ...] = ()
    load_steps: int = 3
    step_s: float = 0.0
    load_error: Exception | None = None
    error: Exception | None = None
    error_after: int = 0
    reason: str = "stop"
    notices: tuple[str, ...] = ()
    model: str = "Scripted-135M"
    layers: int = 4
    thinking: ThinkingMarks | None = None
    prompt_end: str = ""

    def choice(self, index: int) -> tuple[float, tuple[Alternative, ...], TokenTimes]:
        """How likely a piece was, what else there was, and what it took: from 1.0 down, each half as likely."""
        logprobs = [-0.7 * (index % 8 + each + 1) for each in range(3)]
        texts = [(PIECE + (index + each) % len(self.pieces)) for each in range(3)]
        found = tuple(Alternative(id, self.pieces[id - PIECE], p) for id, p in zip(texts, logprobs, strict=True))
        return logprobs[0], found, TokenTimes(0.010, 0.001, StepSpans(0.002, 0.004, 0.0005, 0.003, 0.001), 0.0025)


@dataclass(frozen=True)
class ScriptedInfo:
    model: str
    family: str = "llama"
    path: str = "/models/scripted.gguf"
    device: str = "cpu"
    adapter: str = "NumPy"
    device_reason: str = "no GPU was found"
    dtype: str = "f32"
    kv_layout: str = "contiguous"
    context: int = 2048
    num_layers: int = 4
    vocab_size: int = 1000
    placement: str = ""
    notices: tuple[str, ...] = ()
    load_s: float = 0.5


WINDOW, SLOTS, LAYER_BYTES = 24, 40, 2880


@dataclass
class ScriptedSequence:
    """Layers 0, 1 and 3 in a small ring, layer 2 in pages."""

    tokens: int = 0

    def close(self) -> None:
        self.tokens = 0

    def kv_stats(self) -> KvStats:
        pages, ring = -(-self.tokens // 32) * 32, min(self.tokens, SLOTS)
        groups = (
            KvGroupStats("ring", "a window", (0, 1, 3), ring, *(3 * LAYER_BYTES * n for n in (ring, SLOTS, SLOTS))),
            KvGroupStats(
                "paged", "no window", (2,), self.tokens, *(LAYER_BYTES * n for n in (self.tokens, pages, 2048))
            ),
        )
        sums = (
            sum(getattr(group, name) for group in groups)
            for name in ("used_bytes", "allocated_bytes", "capacity_bytes")
        )
        return KvStats("ring (3 layers), paged (1 layers)", self.tokens, 2048, *sums, groups)

    def kv_map(self) -> tuple[KvMapGroup, ...]:
        slots = ["f"] * SLOTS
        for position in range(self.tokens):
            slots[position % SLOTS] = "k" if position > self.tokens - WINDOW else "o"
        pages = "k" * self.tokens + "f" * (-self.tokens % 32)
        ring, paged = self.kv_stats().groups
        return (
            KvMapGroup("ring", (0, 1, 3), WINDOW, True, "".join(slots), SLOTS, ring.used_bytes, ring.allocated_bytes),
            KvMapGroup("paged", (2,), None, False, pages, 2048, paged.used_bytes, paged.allocated_bytes),
        )


def adapter(path: str) -> Adapter:
    """An adapter of rank 4 on two projections."""
    part = LowRank(np.zeros((4, 8), np.float32), np.zeros((8, 4), np.float32))
    return Adapter(Path(path).name, Path(path), {"layers.0.attention.q": part, "layers.0.attention.v": part})


@dataclass(frozen=True)
class ScriptedAdapters:
    applied: tuple[AppliedAdapter, ...] = ()


PIECE = 0x110000
"""Id of a script's first piece, the ids before it are those of characters."""
BOS = 1


@dataclass(frozen=True)
class ScriptedTokens(Sequence[str]):
    """The characters, of which the one of id 1 begins a prompt, and the pieces of a script."""

    pieces: tuple[str, ...] = ()

    def __len__(self) -> int:
        return PIECE + len(self.pieces)

    def __getitem__(self, index: Any) -> Any:
        return self.pieces[index - PIECE] if index >= PIECE else "<s>" if index == BOS else chr(index)


@cache
def vocabulary(pieces: tuple[str, ...]) -> Vocabulary:
    """The vocabulary of a script with these pieces."""
    types = np.full(PIECE + len(pieces), TokenType.NORMAL, np.int32)
    types[BOS] = TokenType.CONTROL
    return Vocabulary(True, ScriptedTokens(pieces), types, BOS)


@dataclass(frozen=True)
class ScriptedTokenizer:
    """A token a character, and one a piece of the script."""

    vocabulary: Vocabulary

    def encode(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        return [*([1] if add_special else []), *map(ord, text)]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(self.vocabulary.tokens.__getitem__, ids))


@dataclass
class ScriptedEngine:
    script: Script = field(default_factory=Script)
    kv: str = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    closed: bool = False
    prompts: list[Any] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    adapters: ScriptedAdapters = field(default_factory=ScriptedAdapters)
    asked_loras: list[tuple[tuple[str, float], ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._cancel = threading.Event()

    @property
    def info(self) -> ScriptedInfo:
        path = f"/models/{self.script.model}.gguf"
        layout = "ring (3 layers), paged (1 layers)" if self.kv == "auto" else self.kv
        return ScriptedInfo(self.script.model, path=path, kv_layout=layout, notices=self.script.notices)

    @property
    def thinking(self) -> ThinkingMarks | None:
        return self.script.thinking

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        return " ".join(f"{turn['role']}: {turn['content']}" for turn in messages) + self.script.prompt_end

    def sequence(self, kv: str | None = None) -> ScriptedSequence:
        if kv == "ring":
            raise LayoutUnavailable("the ring layout needs layers with a sliding window")
        return ScriptedSequence()

    def plan(self, phase: str) -> list[PlanRow]:
        rows = plan_rows(self.script.layers, phase)
        if not self.adapters.applied:
            return rows
        note = "lora_into_matmul: q.lora, v.lora"
        rows = [replace(row, notes=(*row.notes, note)) if row.name == "norm+qkv" else row for row in rows]
        return rows + lora_rows(self.script.layers)

    def set_loras(self, loras: Sequence[tuple[str, float]]) -> None:
        """Takes any path but those with `bad` in them."""
        self.asked_loras.append(tuple(loras))
        if wrong := [path for path, _ in loras if "bad" in path]:
            raise BadAdapter(f"{wrong[0]}: tensor q.lora_A is for a matrix of 8 x 9, expected 8 x 8")
        self.adapters = ScriptedAdapters(tuple(AppliedAdapter(adapter(path), strength) for path, strength in loras))

    @property
    def tokenizer(self) -> ScriptedTokenizer:
        return ScriptedTokenizer(vocabulary(self.script.pieces))

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return [1, *self.tokenizer.encode(self.render(messages))]

    def kernels(self) -> list[dict[str, str]]:
        return [{"op": "attention", "variant": "reference", "reason": "NumPy, f32"}]

    def time_ops(self, phase: Literal["decode", "prefill"], sequence: ScriptedSequence) -> OpTimes:
        """Operation `n` takes n + 1 microseconds, and all at once half of what they take alone."""
        if self.script.error is not None:
            raise self.script.error
        ops = tuple((row + 1) * 1e-6 for row in range(len(self.plan(phase))))
        return OpTimes(phase, ops, sum(ops) / 2, 1 if phase == "decode" else 128, sequence.tokens, 9)

    def memory(self) -> MemoryStats:
        formats = {"q4_1": 70 * MIB, "q8_0": 28 * MIB, "f32": 1 * MIB}
        if self.adapters.applied:
            formats["adapters f32"] = sum(each.adapter.nbytes for each in self.adapters.applied)
        return MemoryStats(
            "cpu", formats, 99 * MIB, 23 * MIB, 6 * MIB, MIB, 140 * MIB, 310 * MIB, {"maxBufferSize": 1 << 31}
        )

    def cancel(self) -> None:
        self._cancel.set()

    def close(self) -> None:
        self.closed = True

    def generate(
        self,
        prompt: Sequence[Any],
        sampling: Sampling,
        /,
        max_tokens: int | None = None,
        *,
        sequence: ScriptedSequence | None = None,
        begun: str = "",
    ) -> Iterator[Event]:
        self._cancel.clear()
        self.prompts.append(prompt)
        self.samplings.append(sampling)
        self.begun.append(begun)
        sequence = sequence or ScriptedSequence()
        script, started = self.script, time.perf_counter()
        words = sum(len(turn["content"].split()) if isinstance(turn, dict) else 1 for turn in prompt)
        yield Prefill(words, words, sequence.tokens)
        ids = self.encode_chat(prompt) if isinstance(prompt[0], dict) else prompt
        yield Prompted(tuple(ids), min(sequence.tokens, len(ids) - 1))
        reason, made, last_stats, paced = script.reason, 0, started, started
        for index, piece in enumerate(script.pieces):
            if script.error is not None and index == script.error_after:
                raise script.error
            if self._cancel.is_set():
                reason = "cancelled"
                break
            if max_tokens is not None and made >= max_tokens:
                reason = "length"
                break
            if index < script.burst:
                paced = time.perf_counter()
            elif script.tokens_per_s:
                due = paced + (index + 1 - script.burst) / script.tokens_per_s
                time.sleep(max(0.0, due - time.perf_counter()))
            made += 1
            sequence.tokens += 1
            yield Token(PIECE + index, piece, *script.choice(index))
            now = time.perf_counter()
            if now - last_stats > 0.1:
                last_stats = now
                yield Stats(self.memory(), sequence.kv_stats(), self._timings(started, made, words), sequence.kv_map())
        timings = self._timings(started, made, words)
        yield Stats(self.memory(), sequence.kv_stats(), timings, sequence.kv_map())
        yield Finished(reason, timings)  # type: ignore[arg-type]

    def generate_many(
        self,
        prompts: Sequence[Any],
        sampling: Sequence[Sampling],
        max_tokens: int | None,
        sequences: Sequence[ScriptedSequence | None],
        /,
    ) -> RepliesAtOnce:
        self._cancel.clear()
        self.prompts += prompts
        self.samplings += sampling
        texts = self.script.many or (self.script.pieces,)
        pieces = [texts[index % len(texts)] for index in range(len(prompts))]
        return RepliesAtOnce(self.script, pieces, max_tokens, self._cancel, self._timings)

    def twin(self, prompt: Any, lanes: tuple[TwinLane, TwinLane], max_tokens: int | None, /) -> Iterator[TwinEvent]:
        self._cancel.clear()
        self.prompts.append(prompt)
        self.samplings += [lane.sampling for lane in lanes]
        return twin_replies(self.script, lanes, max_tokens, self._cancel, self._timings)

    def _timings(self, started: float, made: int, words: int) -> Timings:
        seconds = max(time.perf_counter() - started, 1e-6)
        return Timings(0.5, 0.01, 1000.0, seconds, made / seconds, 0.02, words, 0, made)


def opener(*scripts: Script) -> tuple[Callable[..., ScriptedEngine], list[ScriptedEngine]]:
    """An `open_engine` that plays the scripts in turn (the last one again and again), and the engines it made."""
    made: list[ScriptedEngine] = []

    def open_engine(path: str, kv: str, progress: Callable[[Loading | Notice], None], **options: Any) -> ScriptedEngine:
        script = scripts[min(len(made), len(scripts) - 1)]
        for step in range(script.load_steps):
            time.sleep(script.step_s)
            progress(Loading("weights", step * 10 * MIB, script.load_steps * 10 * MIB))
        if script.load_error is not None:
            made.append(ScriptedEngine(script))
            raise script.load_error
        made.append(ScriptedEngine(script))
        made[-1].kv, made[-1].options = kv, options
        return made[-1]

    return open_engine, made


def resolve(model: str, kv: str, progress: Callable[[Loading | Notice], None], cancelled: Callable[[], bool]) -> str:
    """A `resolve` that finds every model at once, but for those whose name begins with `missing`; none has a window."""
    if kv == "ring":
        raise LayoutUnavailable(f"the ring layout needs layers with a sliding window, {model} has none")
    if model.startswith("missing"):
        raise ModelNotFound(f"{model} is neither a file nor a model of the catalogue.")
    return f"/models/{model}"


def resolve_adapter(name: str, progress: Callable[[Loading | Notice], None], cancelled: Callable[[], bool]) -> str:
    """A `resolve_adapter` that finds every adapter at once, but `slow` ones, and none that begins with `missing`."""
    if name.startswith("missing"):
        raise BadAdapter(f"adapter {name}: there is no such file or folder")
    while name.startswith("slow"):
        progress(Loading(f"fetching {name}", 1, 4))
        time.sleep(0.01)
        if cancelled():
            raise Cancelled("the download was cancelled")
    return name if name.startswith("/") else f"/lora/{name}"
