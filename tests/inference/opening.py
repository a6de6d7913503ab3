"""Open models below the Engine: their config and weights, and executors over them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inference.cpu.executor import NumpyExecutor
from inference.executor import Executor
from inference.formats.gguf import open_gguf
from inference.formats.safetensors import open_safetensors
from inference.kernels.base import KernelPreference
from inference.kv.choose import choose_layouts
from inference.models.config import ModelConfig
from inference.models.families import config_from_gguf, config_from_hf
from inference.placement import first_layers, groups_on
from inference.plan.ops import DEVICES, Device, Logits
from inference.weights import WeightStore

if TYPE_CHECKING:
    from inference.gpu.executor import WebGpuExecutor
    from inference.split_executor import SplitExecutor


def open_store(path: Path) -> tuple[ModelConfig, WeightStore]:
    """The config and the weights of a GGUF file, or of a folder's safetensors by the .json file that describes them."""
    if path.suffix == ".gguf":
        gguf = open_gguf(path)
        config = replace(config_from_gguf(gguf), name=path.stem)
        return config, WeightStore(gguf, config)
    file = open_safetensors(path.parent)
    config = replace(config_from_hf(json.loads(path.read_text(encoding="utf-8")), file), name=path.parent.name)
    return config, WeightStore(file, config)


def open_numpy(path: Path, fused: bool = True, kv: str = "auto", kernel: str | None = "reference") -> NumpyExecutor:
    """The NumPy executor over a model as in `open_store`. It reads its weights when they are first needed.

    Its matmuls are the reference unless another `kernel` is named; with None it chooses itself.
    """
    config, store = open_store(path)
    preferences = [KernelPreference(kernel, force=True)] if kernel else []
    return NumpyExecutor(config, store, choose_layouts(config, kv), fused, preferences)


def open_webgpu(path: Path, kv: str = "auto", **options: Any) -> WebGpuExecutor:
    """The WebGPU executor over a model as in `open_store`, on this machine's best adapter, its weights uploaded."""
    from inference.gpu.device import choose_adapter
    from inference.gpu.executor import WebGpuExecutor

    config, store = open_store(path)
    executor = WebGpuExecutor(config, store, *choose_adapter(), choose_layouts(config, kv), **options)
    executor.load()
    return executor


def open_split(path: Path, gpu_layers: int, kv_device: Device, kv: str = "auto", **options: Any) -> SplitExecutor:
    """Both devices over a model as in `open_store`: that many layers on WebGPU; the CPU's matmuls are the reference."""
    from inference.gpu.device import choose_adapter
    from inference.gpu.executor import WebGpuExecutor
    from inference.split_executor import SplitExecutor

    config, store = open_store(path)
    placement = first_layers(config.num_layers, gpu_layers, kv_device)
    gpu_groups, cpu_groups = (groups_on(choose_layouts(config, kv), placement, device) for device in DEVICES)
    reference = [KernelPreference("reference", force=True)]
    cpu = NumpyExecutor(config, store, cpu_groups, preferences=reference, placement=placement)
    gpu = WebGpuExecutor(config, store, *choose_adapter(), gpu_groups, placement=placement, **options)
    executor = SplitExecutor(cpu, gpu, placement)
    executor.load()
    return executor


def run_ids(executor: Executor[Any], ids: Sequence[int], logits: Logits = "all") -> np.ndarray | None:
    """`forward` over a fresh cache in steps of the executor's own size, all in one array for logits "all"."""
    cache = executor.new_cache(len(ids))
    size = executor.logits_chunk if logits == "all" else executor.chunk
    results = [executor.forward(cache, list(ids[start : start + size]), logits) for start in range(0, len(ids), size)]
    cache.close()
    return np.concatenate([r for r in results if r is not None]) if logits == "all" else results[-1]
