"""Opening a model: which device and why, limits of context and memory, kernels by name, progress, what is said."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wgpu

from inference import Engine, Sampling
from inference.errors import (
    BadTemplate,
    Cancelled,
    ContextFull,
    DeviceUnavailable,
    DoesNotFit,
    KernelUnavailable,
    LayoutUnavailable,
    ModelNotFound,
    UnsupportedModel,
)
from inference.events import Loading, Notice
from inference.gpu import executor
from inference.gpu.device import DeviceCaps
from inference.plan.ops import Device
from inference.plan.place import whole
from inference.sequence import Sequence
from tests.inference.gguf_variants import rewrite
from tests.inference.replies import GREEDY, IDS, ids_of, reply

Tiny = Callable[[str], Path]


@pytest.fixture
def llama(tiny: Tiny) -> Path:
    return tiny("llama") / "gguf" / "model-f16.gguf"


def no_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", list)


def test_what_was_opened(llama: Path) -> None:
    engine = Engine.open(llama, device="cpu")
    info = engine.info
    assert (info.model, info.family, info.device, info.device_reason) == ("model-f16", "llama", "cpu", "asked for")
    assert (info.dtype, info.kv_layout, info.context, info.num_layers) == ("f32", "paged", 512, 4)
    assert info.path == str(llama) and info.notices == () and info.load_s > 0
    engine.close()


# Devices


def test_webgpu_without_an_adapter(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_adapters(monkeypatch)
    with pytest.raises(DeviceUnavailable, match=r"no WebGPU adapter was found; .*--device cpu") as caught:
        Engine.open(llama, device="webgpu")
    assert "\n" not in str(caught.value)


def test_auto_without_an_adapter_takes_the_cpu_and_says_so(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_adapters(monkeypatch)
    engine = Engine.open(llama)
    assert engine.info.device == "cpu"
    assert "no WebGPU adapter was found" in engine.info.device_reason
    engine.close()


@pytest.mark.gpu
def test_auto_takes_a_gpu_but_no_software_adapter(llama: Path) -> None:
    from inference.gpu.device import choose_adapter

    _, report = choose_adapter()
    engine = Engine.open(llama)
    if report.software:
        assert engine.info.device == "cpu"
        assert report.name in engine.info.device_reason and "software" in engine.info.device_reason
    else:
        assert engine.info.device == "webgpu"
    engine.close()


# Context


def test_a_context_beyond_the_models_own_must_be_asked_for(llama: Path) -> None:
    with pytest.raises(
        ContextFull, match="a context of 600 is more than the 512 that model-f16 was made for"
    ) as caught:
        Engine.open(llama, device="cpu", context=600)
    assert "--extend-context" in str(caught.value)
    engine = Engine.open(llama, device="cpu", context=600, extend_context=True)
    assert engine.info.context == engine.sequence().context == 600
    engine.close()


@pytest.mark.parametrize("device", ["cpu", pytest.param("webgpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("kv", "before", "after"), [("contiguous", 1024, 1200), ("paged", 1024, 1056)])
def test_a_cache_that_grows_keeps_what_it_holds(llama: Path, device: Any, kv: str, before: int, after: int) -> None:
    """Across the step of 1024 tokens: while the prompt is computed, while decoding, and for a fork."""
    ids = [(13 * i + i // 7) % 500 for i in range(1040)]
    engine = Engine.open(llama, device=device, kv=kv, dtype="f32", context=1200, extend_context=True)
    token_bytes = 2 * engine.config.num_layers * engine.config.kv_size * 4

    def capacity(sequence: Sequence) -> float:
        return sequence.kv_stats().allocated_bytes / token_bytes

    sequence = engine.sequence()
    sequence.set_ids(ids[:1018])
    assert capacity(sequence) == before
    fork = sequence.fork()
    events = reply(engine, ids[:1018], max_tokens=12, sequence=sequence)
    assert capacity(sequence) == after
    whole = Engine.open(llama, device="cpu", context=1200, extend_context=True)
    expected = ids_of(reply(whole, ids[:1018], max_tokens=12))
    assert ids_of(events) == expected
    np.testing.assert_allclose(fork.append(ids[1018:]), whole.logits(ids, [1039])[0], atol=2e-4)
    assert capacity(fork) == after
    engine.close()
    whole.close()


# What is said while loading


def test_a_bias_that_would_be_left_out_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("llama") / "gguf" / "model-f16.gguf"
    path = rewrite(source, tmp_path / "biased.gguf", tensors={"blk.1.attn_q.bias": np.ones(64, np.float32)})
    with pytest.raises(UnsupportedModel, match=r"biased\.gguf: tensor blk\.1\.attn_q\.bias is a bias"):
        Engine.open(path, device="cpu")


def test_progress_and_notices(tiny: Tiny, tmp_path: Path) -> None:
    path = rewrite(
        tiny("llama") / "gguf" / "model-f16.gguf",
        tmp_path / "odd.gguf",
        tensors={"blk.0.attn_q.extra": np.ones(64, np.float32)},
        without=["tokenizer.chat_template"],
    )
    heard: list[Loading | Notice] = []
    engine = Engine.open(path, device="cpu", dtype="f16", kernels=["prefer:gemv"], progress=heard.append)
    loading = [event for event in heard if isinstance(event, Loading)]
    assert loading[-1].done == loading[-1].total > 1 and {event.stage for event in loading} == {"weights"}
    notices = [event.text for event in heard if isinstance(event, Notice)]
    assert tuple(notices) == engine.info.notices
    assert [
        any(part in notice for notice in notices)
        for part in ("blk.0.attn_q.extra", "no chat template", "f16", "kernels")
    ]
    assert len(notices) == 4
    engine.close()


@pytest.mark.parametrize("device", ["cpu", pytest.param("webgpu", marks=pytest.mark.gpu)])
def test_loading_can_be_cancelled(llama: Path, device: Any) -> None:
    def cancel(event: Loading | Notice) -> None:
        raise Cancelled("cancelled")

    with pytest.raises(Cancelled):
        Engine.open(llama, device=device, progress=cancel)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"nothing\.gguf"):
        Engine.open(tmp_path / "nothing.gguf", device="cpu")


def test_an_unknown_family(tiny: Tiny, tmp_path: Path) -> None:
    path = rewrite(
        tiny("llama") / "gguf" / "model-f16.gguf", tmp_path / "m.gguf", metadata={"general.architecture": "mamba"}
    )
    with pytest.raises(UnsupportedModel, match="'mamba', a family that is not supported; the known families are"):
        Engine.open(path, device="cpu")


@pytest.mark.parametrize("wrong", [{"kernels": ["gemv"]}, {"kernels": ["always:gemv"]}, {"kernels": ["force:"]}])
@pytest.mark.gpu
def test_options_that_are_misspelt(llama: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Engine.open(llama, device="webgpu", **wrong)


def test_a_layout_that_does_not_exist(llama: Path) -> None:
    with pytest.raises(LayoutUnavailable, match="no KV layout 'heap'; choose auto or one of contiguous, paged"):
        Engine.open(llama, device="cpu", kv="heap")


# WebGPU only


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "name"), [("attention", "decode_streaming"), ("matmul", "gemv_workgroup"), ("lm_head", "gemv_workgroup")]
)
def test_a_kernel_by_name(llama: Path, kind: str, name: str) -> None:
    plain = Engine.open(llama, device="webgpu", dtype="f32")
    expected = ids_of(reply(plain))
    plain.close()
    for mode in ("force", "prefer"):
        engine = Engine.open(llama, device="webgpu", dtype="f32", kernels=[f"{mode}:{name}"])
        rows = [row for row in engine.plan("decode") if row.kind == kind]
        assert {(row.variant, row.reason) for row in rows} == {(name, "asked for by name")}
        assert ids_of(reply(engine)) == expected
        engine.close()


@pytest.mark.gpu
def test_a_kernel_that_cannot_run(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe = executor.describe_caps

    def without_subgroups(*arguments: Any) -> DeviceCaps:
        return replace(describe(*arguments), subgroup_size=0, subgroup_reason="the adapter has no subgroups")

    monkeypatch.setattr(executor, "describe_caps", without_subgroups)
    engine = Engine.open(llama, device="webgpu", dtype="f32", kernels=["prefer:gemv_subgroup"])
    row = next(row for row in engine.plan("decode") if row.name == "attention.qkv")
    assert row.variant == "gemv_workgroup"
    assert dict(row.rejected)["gemv_subgroup"] == "the adapter has no subgroups"
    engine.close()
    forced = Engine.open(llama, device="webgpu", dtype="f32", kernels=["force:gemv_subgroup"])
    with pytest.raises(KernelUnavailable, match="gemv_subgroup cannot run: the adapter has no subgroups; use prefer:"):
        reply(forced)
    forced.close()


@pytest.mark.gpu
def test_a_kernel_that_does_not_exist(llama: Path) -> None:
    with pytest.raises(
        KernelUnavailable, match="no kernel is called 'fastest'; there are gemv_packed, gemv_subgroup, "
    ):
        Engine.open(llama, device="webgpu", kernels=["prefer:fastest"])


@pytest.mark.gpu
def test_too_little_memory_for_the_weights(llama: Path) -> None:
    with pytest.raises(DoesNotFit, match="does not fit") as caught:
        Engine.open(llama, device="webgpu", gpu_memory=100_000, gpu_layers=4)
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.parametrize("kv_device", ["webgpu", "cpu"])
def test_as_many_layers_as_fit_a_small_memory(llama: Path, kv_device: Device) -> None:
    """The split is told and shown, WebGPU stays within its memory up to the last token, and the reply is the same."""
    limit, context = 1_400_000 if kv_device == "webgpu" else 480_000, 1030
    engine = Engine.open(
        llama, device="webgpu", dtype="f32", context=context, extend_context=True, gpu_memory=limit, kv_device=kv_device
    )
    info = engine.info
    assert info.device == "webgpu" and re.fullmatch(r"webgpu: [123] of 4 layers; cpu: .*", info.placement)
    (notice,) = info.notices
    assert info.placement in notice and "sampled on the CPU" in notice and "of --gpu-memory" in notice
    rows = engine.plan("decode")
    assert {row.device for row in rows if row.kind == "matmul"} == {"webgpu", "cpu"}
    assert {row.device for row in rows if row.kind == "attention"} == {"cpu", kv_device}
    ids = [(7 * i) % 500 for i in range(context)]
    sequence = engine.sequence()
    sequence.set_ids(ids[:-1])
    cpu = Engine.open(llama, device="cpu", context=context, extend_context=True)
    np.testing.assert_allclose(sequence.append(ids[-1:]), cpu.logits(ids, [context - 1])[0], atol=1e-4)
    assert engine.memory().bytes_by_device["webgpu"] <= limit
    assert sequence.kv_stats().tokens == context and len(sequence.kv_map()) == len(sequence.kv_stats().groups)
    cpu.close()
    engine.close()


@pytest.mark.gpu
def test_where_not_one_layer_fits_all_runs_on_the_cpu_and_this_is_told(llama: Path) -> None:
    engine = Engine.open(llama, device="webgpu", gpu_memory=100_000)
    assert (engine.info.device, engine.info.adapter, engine.info.placement) == ("cpu", "NumPy", "")
    assert "not one layer has room on webgpu" in engine.info.device_reason
    assert any("all runs on the CPU" in notice for notice in engine.info.notices)
    engine.close()


@pytest.mark.gpu
def test_more_layers_than_there_are_and_none(llama: Path) -> None:
    every = Engine.open(llama, device="webgpu", gpu_layers=40)
    assert every.info.device == "webgpu" and every.info.notices == ("--gpu-layers 40: the model has 4 layers",)
    every.close()
    none = Engine.open(llama, device="webgpu", gpu_layers=0)
    assert none.info.device == "cpu" and none.info.device_reason == "--gpu-layers 0 was asked for"
    none.close()


def test_layers_for_webgpu_have_no_effect_on_the_cpu(llama: Path) -> None:
    engine = Engine.open(llama, device="cpu", gpu_layers=2, kv_device="cpu")
    assert engine.info.notices == ("--gpu-layers has no effect on the CPU", "--kv-device has no effect on the CPU")
    engine.close()


@pytest.mark.gpu
@pytest.mark.parametrize("kv", ["contiguous", "paged"])
def test_too_little_memory_to_grow_leaves_the_cache_as_it_was(
    llama: Path, kv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Such a model is refused when it is opened; the cache has to bear it all the same.
    monkeypatch.setattr("inference.loading.choose_placement", lambda *_: whole("webgpu", 4))
    measured = Engine.open(llama, device="webgpu", kv=kv, dtype="f32", context=3000, extend_context=True)
    sequence = measured.sequence()
    sequence.append(IDS)
    reply(measured, sequence=sequence)
    enough = measured.memory().peak_bytes + 600_000
    measured.close()
    ids = [(7 * i) % 500 for i in range(1030)]
    engine = Engine.open(
        llama, device="webgpu", kv=kv, dtype="f32", context=3000, extend_context=True, gpu_memory=enough
    )
    sequence = engine.sequence()
    sequence.set_ids(ids[:1000])
    held = engine.memory().kv_bytes
    before = sequence.kv_stats()
    for _ in range(2):
        with pytest.raises(DoesNotFit, match="kv cache"):
            sequence.append(ids[1000:])
        assert engine.memory().kv_bytes == held
        assert sequence.kv_stats() == before
    cpu = Engine.open(llama, device="cpu")
    sequence.truncate(300)
    np.testing.assert_allclose(sequence.append([9]), cpu.logits([*ids[:300], 9], [300])[0], atol=1e-4)
    engine.close()


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_f16_storage(tiny: Tiny, family: str) -> None:
    """Activations and KV in f16: the same choice wherever the reference's margin is large."""
    try:
        engine = Engine.open(tiny(family) / "gguf" / "model-f16.gguf", device="webgpu", dtype="f16")
    except DeviceUnavailable as unavailable:
        pytest.skip(str(unavailable))
    golden = np.load(tiny(family) / "golden.npz")
    logits = engine.logits(golden["ids_150"].tolist())
    worst = np.abs(logits[:, golden["cols"]] - golden["logits_150"]).max()
    assert 1e-4 < worst < 0.1
    clear = golden["gap_150"] > 0.2
    assert clear.sum() > 50
    np.testing.assert_array_equal(logits.argmax(axis=1)[clear], golden["argmax_150"][clear])
    rows = {row.name: row for row in engine.plan("decode")}
    assert rows["attention.qkv"].output_dtype == "f16" and rows["lm_head"].output_dtype == "f32"
    assert all(row.accumulate in ("f32", "") for row in rows.values())
    sequence = engine.sequence()
    sequence.append(IDS)
    stats = sequence.kv_stats()
    assert stats.layout == {"llama": "paged", "gemma3_text": "ring (7 layers), paged (1 layers)"}[family]
    held = sum(len(group.layers) * group.held_tokens for group in stats.groups)
    assert held == len(IDS) * engine.config.num_layers
    assert stats.used_bytes == held * 2 * engine.config.kv_size * 2
    engine.close()


@pytest.mark.gpu
def test_closing_frees_everything(llama: Path) -> None:
    engine = Engine.open(llama, device="webgpu")
    list(engine.generate(IDS, GREEDY, max_tokens=2))
    assert engine.memory().weights_bytes > 0
    engine.close()
    memory = engine.memory()
    assert (memory.weights_bytes, memory.kv_bytes, memory.scratch_bytes, memory.staging_bytes) == (0, 0, 0, 0)


def test_sampling_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="temperature"):
        Sampling(temperature=-1)


def test_an_error_in_the_text_is_told_at_the_next_weight(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_text(_: object) -> None:
        raise BadTemplate("the template is no template")

    heard: list[object] = []
    monkeypatch.setattr("inference.loading.read_text", read_text)
    with pytest.raises(BadTemplate, match="no template"):
        Engine.open(llama, device="cpu", progress=heard.append)
    assert heard == []
