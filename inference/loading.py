"""Opening a model: find the file, read its config, tokenizer and template, choose a device, upload."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from inference import hub
from inference.catalog import load_catalog
from inference.choose_placement import choose_placement
from inference.errors import BadAdapter, ContextFull, DeviceUnavailable
from inference.events import Loading, Notice
from inference.executor import Executor
from inference.fit_target import FitTarget, cpu_target, webgpu_target
from inference.formats.gguf import GGUFFile
from inference.kernels.base import parse_preference
from inference.kv.choose import choose_layouts
from inference.kv.layout import LayerGroup, describe_groups
from inference.lora.adapter_set import AdapterSet, AppliedAdapter
from inference.lora.read import read_adapter
from inference.model_files import ModelFiles, open_files
from inference.model_text import ModelText, text_from_folder, text_from_gguf
from inference.models.config import ModelConfig
from inference.placement import describe, groups_on, split_groups
from inference.plan.ops import Device
from inference.plan.place import Placement
from inference.weights import Precision, WeightStore

DeviceOption = Literal["auto", "webgpu", "cpu"]
Progress = Callable[[Loading | Notice], None]

DEFAULT_CONTEXT = 8192
"""Context where none is asked for, if the model allows as much."""


@dataclass(frozen=True)
class OpenOptions:
    """What Engine.open was asked for; see there."""

    device: DeviceOption = "auto"
    context: int | None = None
    extend_context: bool = False
    dtype: Literal["auto", "f32", "f16"] = "auto"
    kernels: tuple[str, ...] = ()
    gpu_memory: int | None = None
    kv: str = "auto"
    weights: Precision = "auto"
    loras: tuple[tuple[str | Path, float], ...] = ()
    taken: int = 0
    gpu_layers: int | None = None
    kv_device: Device = "webgpu"


@dataclass(frozen=True)
class EngineInfo:
    """What was opened, and why so. `software` tells that WebGPU runs on the processor."""

    model: str
    family: str
    path: str
    device: str
    adapter: str
    device_reason: str
    dtype: str
    kv_layout: str
    context: int
    num_layers: int
    vocab_size: int
    load_s: float
    notices: tuple[str, ...] = ()
    software: bool = False
    placement: str = ""
    """What runs where, of a model that is split between devices."""


@dataclass(frozen=True)
class OpenedModel:
    """Everything that an Engine is made of."""

    info: EngineInfo
    config: ModelConfig
    text: ModelText
    executor: Executor[Any]


@dataclass(frozen=True)
class DeviceChoice:
    """The device, why, and for WebGPU the adapter with its report."""

    device: Device
    reason: str
    adapter: Any = None
    report: Any = None


def open_model(name: str | Path, options: OpenOptions, progress: Progress) -> OpenedModel:
    """Open a model by path or name. Raises the errors of inference.errors; `progress` may raise Cancelled."""
    path = locate(name, progress)
    start = time.perf_counter()
    files = open_files(path, options.weights)
    # Text needs the interpreter, weights the processor and the device: they are read side by side.
    with ThreadPoolExecutor(1, "text") as reader:
        return open_parts(files, reader.submit(read_text, files), options, progress, start)


def open_parts(
    files: ModelFiles, text: Future[ModelText], options: OpenOptions, progress: Progress, start: float
) -> OpenedModel:
    """Open a model whose description has been read, at `start` of time.perf_counter; see `open_model`."""

    def weights_loaded(done: int, total: int) -> None:
        if text.done():
            text.result()  # Whatever is wrong with it is told now.
        progress(Loading("weights", done, total, "tensors"))

    context = settle_context(files.config, options)
    config = files.config.for_context(context)
    notices = list(files.notices)
    choice = choose_device(options.device)
    groups = choose_layouts(config, options.kv)
    target = fit_target(choice, options)
    placement = choose_placement(files, context, options.kv, target, options.gpu_layers, options.kv_device)
    notices += placement_notices(placement, choice, options)
    if "webgpu" not in placement.devices and choice.device == "webgpu":
        choice = DeviceChoice("cpu", placement.reason)
    executor, dtype = make_executor(config, files.store, choice, placement, groups, target, options, notices)
    try:
        executor.load(weights_loaded)
        notices += text.result().notices
        executor.set_adapters(read_adapters(config, options.loras, progress))
    except BaseException:
        executor.close()
        raise
    info = EngineInfo(
        model=config.name,
        family=config.family,
        path=str(files.path),
        device=choice.device,
        adapter=executor.adapter,
        device_reason=choice.reason,
        dtype=dtype,
        kv_layout=describe_groups(split_groups(groups, placement)),
        context=context,
        num_layers=config.num_layers,
        vocab_size=config.vocab_size,
        load_s=time.perf_counter() - start,
        notices=tuple(notices),
        software=choice.device == "webgpu" and choice.report.software,
        placement=describe(placement) if placement.split else "",
    )
    for notice in notices:
        progress(Notice(notice))
    return OpenedModel(info, config, text.result(), executor)


def locate(name: str | Path, progress: Progress) -> Path:
    """The model's file, fetched where it is not on this machine. Raises ModelNotFound, FetchFailed or Cancelled."""
    store = hub.default_store()
    return hub.fetch(hub.resolve(str(name), load_catalog(), store), store, progress)


def locate_adapter(name: str | Path, progress: Progress) -> Path:
    """The adapter's file or folder, fetched where it is not on this machine.

    Raises BadAdapter, ModelNotFound, FetchFailed or Cancelled.
    """
    store = hub.default_store()
    return hub.fetch(hub.resolve_adapter(str(name), store), store, progress)


def read_adapters(
    config: ModelConfig,
    loras: Sequence[tuple[str | Path, float]],
    progress: Progress,
    known: AdapterSet | None = None,
) -> AdapterSet:
    """The adapters of these names, each with its strength; those of `known` are not read again.

    Raises BadAdapter, also for a strength that is no finite number, and the errors of `locate_adapter`.
    """
    held = {each.adapter.path: each.adapter for each in known.applied} if known else {}
    applied = []
    for name, strength in loras:
        if not isfinite(strength):
            raise BadAdapter(f"adapter {name}: its scale is {strength}, expected a number such as 0.5")
        path = locate_adapter(name, progress)
        applied.append(AppliedAdapter(held.get(path) or read_adapter(path, config), float(strength)))
    return AdapterSet(config, tuple(applied))


def settle_context(config: ModelConfig, options: OpenOptions) -> int:
    """The context length to use; raises ContextFull for one beyond the model's own without `extend_context`."""
    if options.context is None:
        return min(config.max_context, DEFAULT_CONTEXT)
    if options.context > config.max_context and not options.extend_context:
        raise ContextFull(
            f"a context of {options.context} is more than the {config.max_context} that {config.name} was made for; "
            "add --extend-context to use it all the same"
        )
    return options.context


def read_text(files: ModelFiles) -> ModelText:
    """The tokenizer, the template and what else text needs, from the GGUF file or the folder."""
    if isinstance(files.tensors, GGUFFile):
        cache = hub.default_store().folder.parent / "tokenizers"
        return text_from_gguf(files.tensors.path, files.tensors.metadata, cache)
    return text_from_folder(files.tensors.path.parent)


def choose_device(wanted: DeviceOption) -> DeviceChoice:
    """The device to run on. Raises DeviceUnavailable where "webgpu" is wanted and there is no adapter."""
    if wanted == "cpu":
        return DeviceChoice("cpu", "asked for")
    # Imported here, since --device cpu must run where no GPU library can be loaded.
    from inference.gpu.device import choose_adapter

    try:
        adapter, report = choose_adapter()
    except DeviceUnavailable as error:
        if wanted == "webgpu":
            raise
        return DeviceChoice("cpu", str(error))
    if wanted == "auto" and report.software:
        return DeviceChoice(
            "cpu",
            f"the only adapter, {report.name}, is software: NumPy is faster; --device webgpu takes it all the same",
        )
    return DeviceChoice("webgpu", "asked for" if wanted == "webgpu" else report.reason, adapter, report)


def fit_target(choice: DeviceChoice, options: OpenOptions) -> FitTarget:
    """The device as the fit of a model is measured on it, with the dtypes that it will store in."""
    if choice.device == "cpu":
        return cpu_target().beside(options.taken)
    from inference.gpu.device import expected_caps

    target = webgpu_target(expected_caps(choice.report), choice.report.type, options.dtype, options.gpu_memory)
    return target.beside(options.taken)


def placement_notices(placement: Placement, choice: DeviceChoice, options: OpenOptions) -> list[str]:
    """What to tell about where the model runs, beyond its device."""
    if choice.device == "cpu":
        asked = [("--gpu-layers", options.gpu_layers is not None), ("--kv-device", options.kv_device == "cpu")]
        return [f"{name} has no effect on the CPU" for name, given in asked if given and options.gpu_layers != 0]
    layers, notices = len(placement.layers), []
    if options.gpu_layers is not None and options.gpu_layers > layers:
        notices.append(f"--gpu-layers {options.gpu_layers}: the model has {layers} layers")
    if placement.split:
        turns = ", several sequences take turns in a step" if "webgpu" in placement.attention else ""
        how = f"split, tokens are sampled on the CPU{turns}"
        notices.append(f"{how}: {describe(placement)} ({placement.reason})")
    elif "webgpu" not in placement.devices:
        notices.append(f"all runs on the CPU: {placement.reason}")
    return notices


def make_executor(
    config: ModelConfig,
    store: WeightStore,
    choice: DeviceChoice,
    placement: Placement,
    groups: Sequence[LayerGroup],
    target: FitTarget,
    options: OpenOptions,
    notices: list[str],
) -> tuple[Any, str]:
    """The executor, not yet loaded, and how its dtypes read."""
    preferences = [parse_preference(text) for text in options.kernels]
    if choice.device == "cpu":
        from inference.cpu.executor import NumpyExecutor
        from inference.cpu.kernels import kernel_notices

        if options.dtype == "f16":
            notices.append("--dtype f16 has no effect on the CPU: NumPy computes and stores in f32")
        notices += kernel_notices(preferences)
        return NumpyExecutor(config, store, groups, preferences=preferences), "f32"
    from inference.gpu.executor import WebGpuExecutor

    dtype, kv_dtype = target.dtype, target.kv_dtype
    from inference.cpu.kernels import NAMES as CPU_KERNELS

    for_gpu = [each for each in preferences if not placement.split or each.name not in CPU_KERNELS]
    gpu = WebGpuExecutor(
        config,
        store,
        choice.adapter,
        choice.report,
        groups_on(groups, placement, "webgpu"),
        dtype=dtype,
        kv_dtype=kv_dtype,
        preferences=for_gpu,
        memory_limit=None if options.gpu_memory is None else target.memory,
        placement=placement,
    )
    dtypes = dtype if dtype == kv_dtype else f"{dtype}, KV {kv_dtype}"
    if not placement.split:
        return gpu, dtypes
    from inference.cpu.executor import NumpyExecutor
    from inference.split_executor import SplitExecutor

    for_cpu = [each for each in preferences if each not in for_gpu]
    on_cpu = groups_on(groups, placement, "cpu")
    cpu = NumpyExecutor(config, store, on_cpu, preferences=for_cpu, placement=placement)
    return SplitExecutor(cpu, gpu, placement), dtypes if dtype == "f32" else f"{dtypes}, on the CPU f32"


def no_progress(_: Loading | Notice) -> None:
    """For callers that do not watch."""
