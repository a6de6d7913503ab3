"""What a model is said to need is what it takes once it is open and its context is full."""

from __future__ import annotations

import os
import re
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference import Engine, Sampling
from inference.errors import DeviceUnavailable, DoesNotFit
from inference.fit import Fit, FitTable, advice, fit_by_size, fit_table, require_fit
from inference.fit_target import FitTarget, cpu_target, find_target, webgpu_target
from inference.gpu import survey
from inference.gpu.device import DeviceCaps, expected_caps
from inference.host_memory import physical_bytes
from inference.kv.layout import GROWTH_STEP
from inference.model_files import ModelFiles, open_files
from inference.weights import Precision

Tiny = Callable[[str], Path]
CONTEXT = 1100  # one step of growth and a piece
CAPS = DeviceCaps(
    name="a card",
    backend="Vulkan",
    software=False,
    f16=True,
    timestamps=True,
    subgroup_size=32,
    subgroup_reason="",
    max_workgroup_storage=32768,
    max_invocations=1024,
    max_workgroups=65535,
    max_binding=1 << 27,
    max_buffer=1 << 31,
    max_storage_buffers=16,
)


@pytest.fixture(scope="module")
def adapter() -> tuple[Any, Any]:
    """The adapter that engines get here, and its report."""
    from inference.gpu.device import choose_adapter

    return choose_adapter()


@pytest.fixture
def llama(tiny: Tiny) -> ModelFiles:
    return open_files(tiny("llama") / "gguf" / "model-q8_0.gguf")


def webgpu(memory: int | None = None, caps: DeviceCaps = CAPS) -> FitTarget:
    return webgpu_target(caps, "DiscreteGPU", "f32", memory)


def fill(engine: Engine, tokens: int) -> Any:
    """A cache that has taken its memory as steps do, the last one of a single token; nothing is computed."""
    cache = engine.executor.new_cache(engine.info.context)
    cache.note(0, [position % engine.info.vocab_size for position in range(tokens)])
    for length in (*range(0, tokens - 1, engine.executor.chunk), tokens - 1):
        cache.length = length
        cache.ensure(min(length + engine.executor.chunk, tokens))
        cache.begin()
    cache.length = tokens
    return cache


def scratch_of(table: FitTable, *kinds: str) -> int:
    return sum(row.bytes for row in table.rows if row.part == "scratch" and row.what.startswith(kinds))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("family", "file", "kv"),
    [
        ("llama", "gguf/model-q8_0.gguf", "contiguous"),
        ("llama", "gguf/model-f16.gguf", "paged"),
        ("gemma3_text", "gguf/model-q8_0.gguf", "ring"),
        ("qwen3", "", "tiered-int8"),
        ("llama", "gguf/model-q8_0.gguf", "bdpa"),
    ],
)
def test_webgpu_takes_what_the_table_says(
    tiny: Tiny, adapter: tuple[Any, Any], family: str, file: str, kv: str
) -> None:
    path, report = tiny(family) / file, adapter[1]
    target = webgpu_target(expected_caps(report), report.type, "f32", None)
    table = fit_table(open_files(path), CONTEXT, kv, target)
    engine = Engine.open(path, device="webgpu", kv=kv, context=CONTEXT, extend_context=True, dtype="f32")
    empty = engine.memory()
    assert {row.what: row.bytes for row in table.rows if row.part == "weights"} == empty.weights_by_format
    assert table.bytes_of("weights") == empty.weights_bytes
    cache = fill(engine, CONTEXT)
    memory = engine.memory()
    growth = sum(row.bytes for row in table.rows if row.what == "copies while it grows")
    assert table.bytes_of("KV cache") - growth == memory.kv_bytes
    assert (
        memory.peak_bytes - memory.kv_bytes - memory.weights_bytes - growth == empty.scratch_bytes + empty.staging_bytes
    )
    assert cache.stats().capacity_bytes <= memory.kv_bytes
    engine.close()


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_webgpu_scratch_once_every_step_was_taken(tiny: Tiny, adapter: tuple[Any, Any], family: str) -> None:
    path, report = tiny(family) / "gguf" / "model-q8_0.gguf", adapter[1]
    target = webgpu_target(expected_caps(report), report.type, "f32", None)
    table = fit_table(open_files(path), 200, "auto", target)
    engine = Engine.open(path, device="webgpu", context=200, dtype="f32")
    rows = engine.executor.chunk
    for last in (5, 20, rows // 2 + 1, rows):
        list(engine.generate([7] * (rows + last), Sampling(temperature=0), max_tokens=2))
    memory = engine.memory()
    assert table.bytes_of("scratch") == pytest.approx(memory.scratch_bytes + memory.staging_bytes, rel=0.02)
    engine.close()


# Contexts that are reached without a step of growth to spare.
@pytest.mark.parametrize(
    ("family", "kv", "context"),
    [
        ("llama", "contiguous", CONTEXT),
        ("llama", "paged", GROWTH_STEP),
        ("gemma3_text", "ring", GROWTH_STEP),
        ("llama", "tiered-int8", GROWTH_STEP + 256),
    ],
)
def test_numpy_takes_what_the_table_says(tiny: Tiny, family: str, kv: str, context: int) -> None:
    path = tiny(family) / "gguf" / "model-q8_0.gguf"
    table = fit_table(open_files(path), context, kv, cpu_target())
    engine = Engine.open(path, device="cpu", kv=kv, context=context, extend_context=True)
    assert table.bytes_of("weights") == engine.memory().weights_bytes
    cache = fill(engine, context)
    assert table.bytes_of("KV cache") == engine.memory().kv_bytes == cache.stats().capacity_bytes
    engine.close()


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_numpy_scratch_of_the_last_step(tiny: Tiny, family: str) -> None:
    """The results of operations and of attention, within a tenth: NumPy makes and drops smaller ones on the way."""
    path = tiny(family) / "gguf" / "model-q8_0.gguf"
    context = 2048
    table = fit_table(open_files(path), context, "contiguous", cpu_target())
    engine = Engine.open(path, device="cpu", kv="contiguous", context=context, extend_context=True)
    cache = fill(engine, context)
    cache.length -= engine.executor.chunk
    engine.executor.forward(cache, [1], "last")
    cache.length -= 1
    tracemalloc.start()
    engine.executor.forward(cache, list(range(engine.executor.chunk)), "last")
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The table counts with threads that are in attention at the same time, which they need not be.
    found = scratch_of(table, "activations", "attention")
    assert taken <= 1.1 * found and found <= 1.1 * taken * (os.cpu_count() or 1)
    engine.close()


@pytest.mark.parametrize("name", ["smollm2_path", "gemma3_path"])
def test_a_real_model_takes_what_the_table_says(request: pytest.FixtureRequest, name: str) -> None:
    path = request.getfixturevalue(name)
    table = fit_table(open_files(path), GROWTH_STEP, "contiguous", cpu_target())
    engine = Engine.open(path, device="cpu", kv="contiguous", context=GROWTH_STEP)
    sequence = engine.sequence()
    sequence.append([1])
    memory = engine.memory()
    assert (table.bytes_of("weights"), table.bytes_of("KV cache")) == (memory.weights_bytes, memory.kv_bytes)
    assert sequence.kv_stats().capacity_bytes == memory.kv_bytes
    engine.close()


def test_weights_quantised_at_load_are_counted_as_such(tiny: Tiny) -> None:
    precisions: tuple[Precision, ...] = ("auto", "q8", "q4")
    tables = [fit_table(open_files(tiny("qwen3"), precision), 512, "auto", webgpu()) for precision in precisions]
    formats = [{row.what for row in table.rows if row.part == "weights"} for table in tables]
    assert [len(each) for each in formats] == [2, 2, 2] and "bf16" in formats[0] and "q8_0" in formats[1]
    plain, q8, q4 = (table.bytes_of("weights") for table in tables)
    assert plain > 1.7 * q8 > 2.5 * q4


def test_a_memory_that_is_not_known_gives_no_verdict(llama: ModelFiles) -> None:
    table = fit_table(llama, 512, "auto", webgpu())
    assert table.fit.fits is None and table.verdict.startswith("unknown: it needs ")
    assert table.verdict.endswith("WebGPU does not tell how much memory the adapter has; --gpu-memory sets a limit")
    require_fit(llama, 512, "auto", webgpu())


@pytest.mark.parametrize(("kind", "known"), [("CPU", True), ("IntegratedGPU", True), ("DiscreteGPU", False)])
def test_adapters_without_memory_of_their_own_have_the_machine_s(kind: str, known: bool) -> None:
    assert webgpu_target(CAPS, kind, "auto", None).memory == (physical_bytes() if known else None)
    assert webgpu_target(CAPS, kind, "auto", 5000).memory == 5000
    assert cpu_target().memory == physical_bytes()


def test_too_little_memory_is_refused_to_the_byte_with_what_would_help(llama: ModelFiles) -> None:
    needed = fit_table(llama, 4096, "paged", webgpu()).fit.needed
    assert needed is not None
    require_fit(llama, 4096, "paged", webgpu(needed))
    with pytest.raises(DoesNotFit, match=r"does not fit a card: it needs .* 1 B more than the .* of --gpu-memory"):
        require_fit(llama, 4096, "paged", webgpu(needed - 1))
    with pytest.raises(DoesNotFit) as caught:
        require_fit(llama, 4096, "paged", webgpu(needed * 2 // 3))
    message = str(caught.value)
    assert "\n" not in message and message.endswith(" or --device cpu")
    proposed = dict(re.findall(r"--(context|kv) (\S+)", message))
    assert set(proposed) == {"context", "kv"}
    require_fit(llama, int(proposed["context"]), "paged", webgpu(needed * 2 // 3))
    require_fit(llama, 4096, proposed["kv"], webgpu(needed * 2 // 3))


def test_float_weights_can_be_proposed_quantised(tiny: Tiny) -> None:
    files = open_files(tiny("qwen3"))
    table = fit_table(files, 512, "auto", webgpu())
    said = advice(files, 512, "auto", webgpu((table.fit.needed or 0) - table.bytes_of("weights") // 3))
    assert "--weights q8" in said
    assert advice(files, 512, "auto", replace(cpu_target(), memory=1000)).startswith("choose a smaller model")


@pytest.mark.gpu
@pytest.mark.parametrize("kv", ["contiguous", "paged"])
def test_a_buffer_beyond_the_device_s_limits(llama: ModelFiles, kv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from inference.gpu import executor as gpu_executor

    describe = gpu_executor.describe_caps
    enough, small = (2 * CONTEXT * llama.config.kv_size * 4, CONTEXT * llama.config.kv_size * 4 - 4)
    # The short steps of a software adapter need less for activations than so short a context for keys.
    caps = replace(CAPS, software=True, max_binding=enough)
    assert fit_table(llama, CONTEXT, kv, webgpu(caps=caps)).fit.fits is None
    caps = replace(caps, max_binding=small)
    table = fit_table(llama, CONTEXT, kv, webgpu(caps=caps))
    assert table.fit.fits is False
    assert re.search(r"kv cache \d\.[kv] needs one buffer of .* \(max-storage-buffer-binding-size\)", table.verdict)
    with pytest.raises(DoesNotFit, match=r"it would with --context 550 or --kv tiered-int8"):
        require_fit(llama, CONTEXT, kv, webgpu(caps=caps))
    if kv == "paged":
        monkeypatch.setattr(gpu_executor, "describe_caps", lambda *args: replace(describe(*args), max_binding=small))
        engine = Engine.open(llama.path, device="webgpu", kv=kv, context=CONTEXT, extend_context=True, dtype="f32")
        with pytest.raises(DoesNotFit):
            fill(engine, CONTEXT)
        engine.close()


@pytest.mark.gpu
def test_the_target_is_found_as_the_engine_chooses_it(
    adapter: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    report, looked = adapter[1], survey.survey()
    monkeypatch.setattr(survey, "survey", lambda: looked)
    found = find_target("webgpu", gpu_memory=1 << 30)
    assert (found.device, found.name, found.memory) == ("webgpu", report.name, 1 << 30)
    assert found.caps is not None
    assert replace(found.caps, subgroup_size=0) == replace(expected_caps(report), subgroup_size=0)
    assert find_target("auto").device == ("cpu" if report.software else "webgpu")


def test_a_gpu_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "survey", lambda: survey.GpuSurvey(problem="WebGPU hung; use --device cpu"))
    assert find_target("auto").device == "cpu"
    with pytest.raises(DeviceUnavailable, match="WebGPU hung"):
        find_target("webgpu")


def test_before_it_is_here_only_the_weights_count() -> None:
    memory = physical_bytes()
    assert memory is not None and memory > 1 << 28
    assert fit_by_size(10, memory // 4 + 1, "cpu").fits is False
    assert fit_by_size(memory * 2, memory // 4, "cpu").fits is True
    assert fit_by_size(10, 20, "webgpu") == Fit(10, None)
    assert fit_by_size(10, 20, "") == Fit()
