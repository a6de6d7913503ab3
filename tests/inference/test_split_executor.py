"""A model on both devices gives the logits that NumPy alone gives, wherever it is split."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.errors import BatchRefused, DeviceUnavailable
from inference.executor import Executor, SampleRequest
from inference.fit import fit_table
from inference.fit_target import cpu_target, webgpu_target
from inference.gpu import transfer
from inference.kv.layout import GROWTH_STEP
from inference.lora.adapter_set import AdapterSet, AppliedAdapter
from inference.lora.read import read_adapter
from inference.model_files import open_files
from inference.plan.explain import moved_per_token
from inference.plan.ops import DEVICES, Device, TensorRef
from inference.sampling import Sampling
from inference.split_executor import SplitExecutor
from tests.inference.opening import open_numpy, open_split, open_webgpu
from tests.inference.tiny_golden import folder

pytestmark = pytest.mark.gpu

TOLERANCE = 1e-4
LAYERS = {"qwen3": 4, "gemma3_text": 8, "olmo2": 4, "llama": 4}


def config_of(family: str) -> Path:
    return folder(family) / "config.json"


def steps(executor: Executor, seed: int = 0) -> np.ndarray:
    """Logits over prefill, decode, a fork, and both going on after a truncation; more ids than a window holds."""
    ids = np.random.default_rng(seed).integers(0, executor.config.vocab_size, 70).tolist()
    kv = executor.new_cache(96)
    rows = [executor.forward(kv, ids[:36], "all"), executor.forward(kv, ids[36:40], "last")]
    executor.forward(kv, ids[40:42], "none")
    fork = kv.fork()
    rows += [executor.forward(kv, [token], "last") for token in ids[42:45]]
    rows += [executor.forward(fork, [token], "last") for token in ids[50:52]]
    if kv.truncate(41) == 41:
        rows.append(executor.forward(kv, ids[60:63], "last"))
    assert fork.length == 44 and fork.stats().tokens == 44
    fork.close()
    kv.close()
    return np.concatenate([np.atleast_2d(row) for row in rows if row is not None])


@cache
def expected(family: str) -> np.ndarray:
    executor = open_numpy(config_of(family))
    try:
        return steps(executor)
    finally:
        executor.close()


def splits() -> Iterator[tuple[str, int, Device]]:
    for family in ("qwen3", "gemma3_text"):
        yield from ((family, layers, device) for layers in range(1, LAYERS[family] + 1) for device in DEVICES)
    yield from (("olmo2", 2, device) for device in DEVICES)


@pytest.mark.parametrize(("family", "gpu_layers", "kv_device"), splits())
def test_logits_do_not_depend_on_where_layers_run(family: str, gpu_layers: int, kv_device: Device) -> None:
    executor = open_split(config_of(family), gpu_layers, kv_device)
    worst = np.abs(steps(executor) - expected(family)).max()
    executor.close()
    assert worst <= TOLERANCE


# What bdpa stores depends on how a difference is rounded: two devices may differ by a step of it.
@pytest.mark.parametrize(("kv", "tolerance"), [("contiguous", TOLERANCE), ("tiered", TOLERANCE), ("bdpa", 2e-2)])
def test_every_kind_of_layout_is_split(kv: str, tolerance: float) -> None:
    path = config_of("llama")
    executor, reference = open_split(path, 2, "webgpu", kv), open_numpy(path, kv=kv)
    worst = np.abs(steps(executor) - steps(reference)).max()
    layout = executor.new_cache(96).stats().layout
    executor.close()
    reference.close()
    assert worst <= tolerance
    assert layout == f"{kv} (2 layers on webgpu), {kv} (2 layers on cpu)"


def test_what_is_copied_has_the_dtype_that_webgpu_stores() -> None:
    """A model split in f16 is as near to one in f32 as f16 is, and moves half the bytes but for the f32 stream."""
    try:
        executor = open_split(config_of("qwen3"), 3, "cpu", dtype="f16", kv_dtype="f16")
    except DeviceUnavailable as unavailable:
        pytest.skip(str(unavailable))
    worst, config = np.abs(steps(executor) - expected("qwen3")).max(), executor.config
    moved = sum(row.moved_bytes for row in executor.plan_rows("decode"))
    executor.close()
    assert TOLERANCE < worst < 0.1
    assert moved == 2 * 4 * config.hidden_size + 3 * 2 * (2 * config.q_size + 2 * config.kv_size)


@pytest.fixture(scope="module")
def llama() -> Iterator[SplitExecutor]:
    executor = open_split(config_of("llama"), 2, "cpu")
    yield executor
    executor.close()


def test_adapters_act_on_both_sides_and_go_again(llama: SplitExecutor) -> None:
    reference = open_numpy(config_of("llama"))
    before = steps(llama)
    adapter = read_adapter(folder("llama") / "lora" / "adapter1", llama.config)
    adapters = AdapterSet(llama.config, (AppliedAdapter(adapter, 0.5),))
    llama.set_adapters(adapters)
    reference.set_adapters(adapters)
    adapted = steps(llama)
    assert np.abs(adapted - steps(reference)).max() <= TOLERANCE
    assert np.abs(adapted - before).max() > 100 * TOLERANCE
    llama.set_adapters(AdapterSet(llama.config))
    np.testing.assert_array_equal(steps(llama), before)
    reference.close()


def test_each_half_holds_the_weights_of_its_own_layers(llama: SplitExecutor) -> None:
    alone = open_webgpu(config_of("llama"))
    whole, both = alone.memory().weights_bytes, llama.memory()
    alone.close()
    on_gpu, on_cpu = llama.gpu.memory(), llama.cpu.memory()
    # Half of the layers, but neither embedding nor head.
    layers = whole - llama.config.vocab_size * llama.config.hidden_size * 2
    assert 0.4 * layers < on_gpu.weights_bytes < 0.5 * whole
    assert on_gpu.kv_bytes == 0
    assert both.weights_bytes == on_gpu.weights_bytes + on_cpu.weights_bytes == sum(both.weights_by_format.values())
    assert both.bytes_by_device["cpu"] == on_cpu.weights_bytes + on_cpu.kv_bytes


def test_the_fit_table_tells_what_each_half_takes(llama: SplitExecutor) -> None:
    from inference.gpu.device import choose_adapter, expected_caps

    report = choose_adapter()[1]
    target = webgpu_target(expected_caps(report), report.type, "f32", None)
    files, kv = open_files(config_of("llama").parent), llama.new_cache(GROWTH_STEP)
    llama.forward(kv, [1, 2, 3], "last")
    for where, half in ((target, llama.gpu), (cpu_target(), llama.cpu)):
        table, memory = fit_table(files, GROWTH_STEP, "auto", where, llama.placement), half.memory()
        assert table.bytes_of("weights") == memory.weights_bytes
        assert table.bytes_of("KV cache") == memory.kv_bytes
    kv.close()


def test_times_and_rows_are_of_the_same_operations(llama: SplitExecutor) -> None:
    if not llama.gpu.caps.timestamps:
        pytest.skip("this adapter has no timestamps")
    for phase, ids in (("decode", [3]), ("prefill", [3] * llama.chunk)):
        kv = llama.new_cache(96)
        rows, times = llama.plan_rows(phase), llama.time_step(kv, ids)  # type: ignore[arg-type]
        assert kv.length == 0
        assert len(rows) == len(times.ops) and min(times.ops) >= 0
        assert {row.device for row in rows} == set(DEVICES)
        assert rows[-1].device == "cpu" and rows[-1].kind == "sample"
        assert times.whole > 0
        kv.close()


def test_a_step_moves_what_its_plan_says(llama: SplitExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream at two borders, and for each layer on WebGPU q, k and v down and the attention's output up, in f32."""
    moved: list[int] = []

    def write(device: Any, buffers: Any, tensor: TensorRef, values: np.ndarray) -> None:
        moved.append(values.nbytes)
        transfer.write_tensor(device, buffers, tensor, values)

    def read(device: Any, buffers: Any, tensor: TensorRef, rows: int) -> np.ndarray:
        values = transfer.read_tensor(device, buffers, tensor, rows)
        moved.append(values.nbytes)
        return values

    monkeypatch.setattr("inference.gpu.executor.write_tensor", write)
    monkeypatch.setattr("inference.gpu.executor.read_tensor", read)
    kv, config = llama.new_cache(8), llama.config
    llama.forward(kv, [1], "last")
    kv.close()
    assert sum(moved) == moved_per_token(llama.plan_rows("decode"))
    assert sum(moved) == 2 * 4 * config.hidden_size + 2 * 4 * (2 * config.q_size + 2 * config.kv_size)


def test_a_seed_gives_the_tokens_of_the_cpu(llama: SplitExecutor) -> None:
    reference, request = open_numpy(config_of("llama")), SampleRequest(Sampling(temperature=0.8), 5, (1, 2, 3))
    replies = []
    for executor in (llama, reference):
        stream = executor.stream(executor.new_cache(16), [1, 2, 3], request)
        replies.append([sampled.id for sampled in stream])
    reference.close()
    assert replies[0] == replies[1] and len(replies[0]) == 14


@pytest.mark.parametrize("kv_device", DEVICES)
def test_several_sequences_in_a_step(kv_device: Device) -> None:
    """In one step where all attention is on the CPU, in turns elsewhere: each has the logits that it has alone."""
    executor = open_split(config_of("llama"), 4 if kv_device == "cpu" else 3, kv_device)
    caches = [executor.new_cache(32) for _ in range(3)]
    alone: list[Any] = []
    for index, kv in enumerate(caches):
        executor.forward(kv, list(range(1, 5 + index)), "none")
        fork = kv.fork()
        alone.append(executor.forward(fork, [index], "last"))
        fork.close()
    np.testing.assert_allclose(executor.forward_many(caches, [0, 1, 2]), np.stack(alone), atol=TOLERANCE)
    assert [kv.length for kv in caches] == [5, 6, 7]
    with pytest.raises(BatchRefused, match="stands in the batch twice"):
        executor.forward_many([caches[0], caches[0]], [1, 2])
    executor.close()


@pytest.mark.slow
@pytest.mark.parametrize(("gpu_layers", "kv_device"), [(1, "webgpu"), (17, "cpu"), (30, "cpu")])
def test_a_real_model_is_split(smollm2_path: Path, gpu_layers: int, kv_device: Device) -> None:
    """By relative L2 of each row: logits of a real model are large where those of a tiny one are about 1."""
    executor, reference = open_split(smollm2_path, gpu_layers, kv_device), open_numpy(smollm2_path)
    found, wanted = steps(executor), steps(reference)
    executor.close()
    reference.close()
    assert (np.linalg.norm(found - wanted, axis=1) <= TOLERANCE * np.linalg.norm(wanted, axis=1)).all()
