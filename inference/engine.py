"""Engine: the facade that scripts and the application use."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Ids
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from inference.batch import Batch, Prompt
from inference.chat_template import encode_chat
from inference.events import Event, MemoryStats
from inference.executor import Executor, SampleRequest, StepCost
from inference.generation import Generation
from inference.kv.choose import choose_layouts
from inference.loading import DeviceOption, OpenedModel, OpenOptions, Progress, no_progress, open_model, read_adapters
from inference.lora.adapter_set import AdapterSet
from inference.op_times import OpTimes, time_ops
from inference.plan.explain import PlanRow
from inference.plan.ops import Device
from inference.sampling import Sampling
from inference.sequence import Sequence
from inference.tokenizer import ids_that_spell
from inference.twin import twin_events
from inference.twin_events import TwinEvent, TwinLane
from inference.weights import Precision

Messages = Ids[Mapping[str, Any]]


class Engine:
    """One model on one device. Belongs to the thread that opened it.

    Others may call `cancel`, and what touches no device: `render`, `encode_chat` and the tokenizer.
    """

    def __init__(self, opened: OpenedModel) -> None:
        self.info = opened.info
        self.config = opened.config
        self.tokenizer = opened.text.tokenizer
        self.thinking = opened.text.thinking
        self._template = opened.text.template
        self._executor = opened.executor
        self._cancelled = threading.Event()

    @classmethod
    def open(
        cls,
        path_or_name: str | Path,
        device: DeviceOption = "auto",
        kv: str = "auto",
        context: int | None = None,
        dtype: Literal["auto", "f32", "f16"] = "auto",
        kernels: Ids[str] = (),
        gpu_memory: int | None = None,
        extend_context: bool = False,
        weights: Precision = "auto",
        loras: Ids[tuple[str | Path, float]] = (),
        taken: int = 0,
        gpu_layers: int | None = None,
        kv_device: Device = "webgpu",
        progress: Progress = no_progress,
    ) -> Engine:
        """Open a model by path, catalogue name or hub name; it is fetched where it is not on this machine.

        `device` "auto" takes the best real GPU, else the CPU. `kv` is a layout of the KV cache by name
        (inference.kv.names.LAYOUTS) or "auto". `context` is in tokens; beyond the model's own it needs
        `extend_context`. `dtype` is that of stored activations and KV; sums are always f32. `kernels` holds
        "prefer:NAME" or "force:NAME". `gpu_memory` limits what may be allocated there, in bytes. `weights` quantises
        matrices that the file holds as floats (inference.weights). `loras` are adapters as for `set_loras`. `taken` are
        bytes that another engine needs of the same memory. On WebGPU, `gpu_layers` is how many of the first layers run
        there, the rest on the CPU; None is as many as fit. With `kv_device` "cpu", keys, values and attention of those
        layers are on the CPU as well. `progress` hears Loading and Notice, and may raise Cancelled. Raises the errors
        of inference.errors.
        """
        options = OpenOptions(
            device,
            context,
            extend_context,
            dtype,
            tuple(kernels),
            gpu_memory,
            kv,
            weights,
            tuple(loras),
            taken,
            gpu_layers,
            kv_device,
        )
        return cls(open_model(path_or_name, options, progress))

    @property
    def executor(self) -> Executor[Any]:
        """What runs the plans, for measuring it without text and stops."""
        return self._executor

    @property
    def adapters(self) -> AdapterSet:
        """The LoRA adapters in use."""
        return self._executor.adapters

    def set_loras(self, loras: Ids[tuple[str | Path, float]], progress: Progress = no_progress) -> None:
        """Use these adapters, by name and strength, instead of those before.

        A name is that of a PEFT folder, of a GGUF adapter, or of either on the hub (org/repo); strength 1 is as
        trained. Sequences that hold tokens compute them anew when they are next used. Raises BadAdapter, DoesNotFit or
        what a download raises, and then nothing has changed.
        """
        self._executor.set_adapters(read_adapters(self.config, loras, progress, self.adapters))

    def sequence(self, kv: str | None = None) -> Sequence:
        """An empty KV state, in the KV layout of that name where it is not the engine's. Raises LayoutUnavailable."""
        groups = None if kv is None else choose_layouts(self.config, kv)
        return Sequence(self._executor, self._executor.new_cache(self.info.context, groups))

    def render(self, messages: Messages, add_generation_prompt: bool = True, **variables: Any) -> str:
        """The conversation as the model's template writes it. Raises BadTemplate.

        `variables` are what templates know besides, such as `tools` or `enable_thinking`.
        """
        return self._template.render(messages, add_generation_prompt, **variables)

    def encode_chat(self, messages: Messages, add_generation_prompt: bool = True, **variables: Any) -> list[int]:
        """Token ids of a conversation; what people wrote never yields special tokens. Raises BadTemplate."""
        return encode_chat(self._template, self.tokenizer, messages, add_generation_prompt, **variables)

    def logits(self, ids: Ids[int], positions: Ids[int] | None = None) -> np.ndarray:
        """Logits after each of `ids` in a fresh sequence, float32 (n, vocab); only the rows in `positions` if given."""
        wanted = sorted(range(len(ids)) if positions is None else positions)
        sequence = self.sequence()
        sequence.check_ids(ids)
        sequence.check_room(len(ids))
        size = self._executor.logits_chunk
        rows = []
        try:
            for start in range(0, len(ids), size):
                chunk = list(ids[start : start + size])
                local = [position - start for position in wanted if start <= position < start + len(chunk)]
                values = self._executor.forward(sequence.cache, chunk, "all" if local else "none")
                if values is not None:
                    rows.append(values[local])
        finally:
            sequence.close()
        return np.concatenate(rows)

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
        sequence: Sequence | None = None,
        begun: str = "",
    ) -> Iterator[Event]:
        """Generate a reply to messages, to token ids, or from where a sequence stands.

        With messages, `begun` is what there is of the reply: it goes on from there, and where `sequence` has just
        written that, from the very same tokens.

        With `sequence`, the reply is generated there and the longest common prefix with what it holds is kept;
        afterwards it holds the prompt and the reply but its last token. Without `max_tokens` the reply may grow
        to the context. Events: Prefill, Token, Notice, Stats, and Finished last. Raises ContextFull where the
        prompt does not fit.
        """
        # Here and not when the first event is asked for, so that a cancel in between is heard.
        self._cancelled.clear()
        return self._reply(prompt, sampling or Sampling(), max_tokens, sequence, begun)

    def twin(
        self, prompt: Messages | Ids[int], lanes: tuple[TwinLane, TwinLane], max_tokens: int | None = None
    ) -> Iterator[TwinEvent]:
        """Generate two replies to messages or token ids side by side, and how far they are apart.

        See inference.twin. The first lane is one of this engine; `cancel` stops both.
        """
        self._cancelled.clear()
        left, right = (lane.engine._prompt_ids(prompt) for lane in lanes)
        return twin_events(lanes, (left, right), max_tokens, self._cancelled)

    def generate_many(
        self,
        prompts: Ids[Prompt],
        sampling: Sampling | Ids[Sampling] | None = None,
        max_tokens: int | None = None,
        sequences: Ids[Sequence | None] | None = None,
    ) -> Batch:
        """Generate replies to several prompts at once, a token of each in one step.

        The result yields (index of the prompt, event), the events of each prompt being those of `generate`, and has
        `add` and `stop` for one of them. `sampling` is one for all or one each; with one that has a seed, equal
        prompts get equal replies. `sequences` keeps states, None where there is none to keep: each then holds its
        prompt and reply but the last token. What prompts have in common with one another, or with what any of the
        sequences holds, is computed once and forked. `cancel` stops all. Raises BatchRefused where they cannot be
        decoded together, ContextFull where a prompt does not fit: nothing has been computed then.
        """
        self._cancelled.clear()
        each = (
            [sampling or Sampling()] * len(prompts) if sampling is None or isinstance(sampling, Sampling) else sampling
        )
        kept = [None] * len(prompts) if sequences is None else sequences
        batch = Batch(self._executor, self.tokenizer, self._request, self.sequence, self._cancelled, self.info.load_s)
        for prompt, settings, sequence in zip(prompts, each, kept, strict=True):
            batch.add(prompt, settings, max_tokens, sequence)
        return batch

    def plan(self, phase: Literal["decode", "prefill"] = "decode") -> list[PlanRow]:
        """The explained plan: one row an operation, as it runs."""
        return self._executor.plan_rows(phase)

    def kernels(self) -> list[dict[str, str]]:
        """The kernels of a decode step: op, variant and reason, each once."""
        seen: dict[tuple[str, str], dict[str, str]] = {}
        for row in self.plan("decode"):
            entry = {"op": row.name, "variant": row.variant, "reason": row.reason}
            seen.setdefault((row.name, row.variant), entry)
        return list(seen.values())

    def memory(self) -> MemoryStats:
        """Bytes by purpose, now and at the peak."""
        return self._executor.memory()

    def step_cost(self) -> StepCost:
        """Host cost of the decode steps of the last reply."""
        return self._executor.step_cost()

    def time_ops(self, phase: Literal["decode", "prefill"], sequence: Sequence) -> OpTimes:
        """What each operation of a step takes, measured now. See inference.op_times."""
        return time_ops(self._executor, sequence, phase)

    def cancel(self) -> None:
        """Stop the reply under way. May be called from any thread."""
        self._cancelled.set()

    def close(self) -> None:
        """Free the device's memory. The engine cannot be used afterwards."""
        self._executor.close()

    def _reply(
        self,
        prompt: Prompt,
        sampling: Sampling,
        max_tokens: int | None,
        sequence: Sequence | None,
        begun: str,
    ) -> Iterator[Event]:
        given = prompt if isinstance(prompt, Sequence) else sequence
        request = self._request(prompt, sampling, given, begun)
        target = self.sequence() if given is None else given
        generation = Generation(
            self._executor, self.tokenizer, target, request, self._cancelled, max_tokens, self.info.load_s, bool(begun)
        )
        try:
            yield from generation.run()
        finally:
            if given is None:
                target.close()

    def _request(self, prompt: Prompt, sampling: Sampling, sequence: Sequence | None, begun: str) -> SampleRequest:
        ids = self._prompt_ids(prompt)
        if begun:
            if isinstance(prompt, Sequence) or not isinstance(prompt[0], Mapping):
                raise ValueError("only a reply to messages can have begun; append its ids to other prompts")
            ids = self._begun_ids(cast(Messages, prompt), ids, begun, sequence)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        return SampleRequest(sampling, seed, tuple(ids))

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, Sequence):
            ids = list(prompt.token_ids)
        elif prompt and isinstance(prompt[0], Mapping):
            ids = self.encode_chat(cast(Messages, prompt))
        else:
            ids = [int(token) for token in cast(Ids[int], prompt)]
        if not ids:
            raise ValueError("generate needs messages, token ids or a sequence that holds tokens")
        return ids

    def _begun_ids(self, messages: Messages, prompt: list[int], begun: str, sequence: Sequence | None) -> list[int]:
        """The ids of the prompt and of the text that its reply begins with."""
        held = [*sequence.token_ids, *sequence.next_ids] if sequence is not None else []
        if held[: len(prompt)] == prompt:
            spelled = ids_that_spell(self.tokenizer, held[len(prompt) :], begun)
            if spelled is not None:
                return [*prompt, *spelled]
        return self.encode_chat(messages, begun=begun)
