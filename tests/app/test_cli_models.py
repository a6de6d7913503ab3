"""`chat ask` on every kind of model that can be named, with the real engine."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import app.cli
from inference.engine import Engine
from tests.inference.tiny_golden import FAMILIES, GGUF_FAMILIES, folder, golden


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """`ask(model, *options)` gives the exit code, stdout and stderr of a short greedy reply on the CPU."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home" / name))

    def run(model: Path, *options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        greedy = ("--device", "cpu", "--temperature", "0", "--max-tokens", "6")
        code = app.cli.main(["ask", "-m", str(model), *greedy, *options, "hello there"])
        out = capfd.readouterr()
        return code, out.out, out.err

    return run


@pytest.mark.parametrize("family", FAMILIES)
def test_every_folder(ask: Callable[..., Any], family: str) -> None:
    code, out, err = ask(folder(family), "--json")
    result = json.loads(out)
    assert (code, result["model"]) == (0, family)
    assert err.count("\n") == (family == "gemma2"), "whose template has no place for a system message"
    assert 1 <= len(result["output_tokens"]) <= 6


def test_the_tokens_that_end_replies_are_told(ask: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    end = "<|im_end|> (501, from config.json, generation_config.json, the tokenizer's eos_token, its text, the chat"
    for command in (["models", "info", str(folder("qwen3"))], ["doctor", "--plan", "-m", str(folder("qwen3"))]):
        assert app.cli.main([*command, "--device", "cpu"]) == 0
        stops = next(line for line in capfd.readouterr().out.splitlines() if line.startswith("stops"))
        assert "<|endoftext|> (499, from generation_config.json, its text); " + end in stops


def test_what_cannot_be_had_is_told_beside_the_output(ask: Callable[..., Any]) -> None:
    code, out, err = ask(folder("qwen3"), "--json", "--kernels", "prefer:decode_split")
    assert code == 0 and json.loads(out)["model"] == "qwen3"
    assert err.startswith("--kernels prefer:decode_split has no effect on the CPU") and err.count("\n") == 1


@pytest.mark.parametrize("file", ["model-f16.gguf", "model-q8_0.gguf"])
@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_every_gguf(ask: Callable[..., Any], family: str, file: str) -> None:
    code, out, _ = ask(folder(family) / "gguf" / file, "--json")
    assert code == 0 and json.loads(out)["model"] == file.removesuffix(".gguf")


def test_a_folder_and_its_gguf_say_the_same(ask: Callable[..., Any]) -> None:
    _, of_folder, _ = ask(folder("qwen3"), "--json")
    _, of_gguf, _ = ask(folder("qwen3") / "gguf" / "model-f16.gguf", "--json")
    found, expected = json.loads(of_gguf), json.loads(of_folder)
    assert found["prompt_tokens"] == expected["prompt_tokens"]
    assert found["output_tokens"] == expected["output_tokens"]


@pytest.mark.gpu
def test_weights_made_smaller_take_less_of_the_device(ask: Callable[..., Any]) -> None:
    held = {}
    for weights in ("auto", "f16", "q8", "q4"):
        code, out, _ = ask(folder("qwen3"), "--device", "webgpu", "--weights", weights, "--json")
        assert code == 0
        held[weights] = json.loads(out)["memory"]["weights_bytes"]
    # All of this model's matrices are bf16: 16 bits a weight; q8_0 takes 8.5, q4_1 takes 5. Norms stay f32.
    matrices = 2 * 229_376
    norms = held["auto"] - matrices
    assert 0 < norms < 10_000 and held["f16"] == held["auto"]
    assert held["q8"] == norms + matrices * 8.5 / 16
    assert held["q4"] == norms + matrices * 5 / 16


def test_weights_that_are_quantised_already_are_left_alone() -> None:
    engine = Engine.open(folder("qwen3") / "gguf" / "model-q8_0.gguf", device="cpu", weights="f16")
    assert any("--weights f16 has no effect" in notice for notice in engine.info.notices)
    engine.close()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of a tiny model that may be spoilt."""
    return Path(shutil.copytree(folder("qwen3"), tmp_path / "spoilt", ignore=shutil.ignore_patterns("gguf", "lora")))


def refused(ask: Callable[..., Any], model: Path, *parts: str) -> None:
    code, out, err = ask(model)
    assert (code, out) == (1, "") and err.count("\n") == 1
    for part in parts:
        assert part in err


def test_an_unknown_architecture_lists_the_known_ones(ask: Callable[..., Any], copied: Path) -> None:
    config = copied / "config.json"
    config.write_text(config.read_text().replace('"qwen3"', '"mamba"'))
    refused(ask, copied, "config.json", "'mamba'", "gemma2", "llama", "smollm3")


def test_a_pickle_is_refused(ask: Callable[..., Any], copied: Path) -> None:
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    refused(ask, copied, "pickle", "safetensors or GGUF")
    refused(ask, copied / "pytorch_model.bin", "pickle")


def rewrite_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    change(header)
    made = json.dumps(header).encode()
    path.write_bytes(len(made).to_bytes(8, "little") + made + raw[8 + length :])


def test_safetensors_that_lie_are_refused_by_the_tensors_name(ask: Callable[..., Any], copied: Path) -> None:
    path, name = copied / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    whole = path.read_bytes()

    def other_shape(header: dict[str, Any]) -> None:
        header[name]["shape"][0] += 1

    def overlap(header: dict[str, Any]) -> None:
        header[name]["data_offsets"] = header["model.norm.weight"]["data_offsets"]

    for change in (other_shape, overlap):
        rewrite_header(path, change)
        refused(ask, copied, "model.safetensors", name)
        path.write_bytes(whole)
    path.write_bytes(whole[: len(whole) // 2])
    refused(ask, copied, "model.safetensors", "tensor")


def test_an_adapter_changes_the_reply_and_another_models_is_refused(ask: Callable[..., Any]) -> None:
    plain, adapted = (
        json.loads(ask(folder("qwen3"), *options, "--json")[1])
        for options in ((), ("--lora", f"{folder('qwen3')}/lora/adapter1=2"))
    )
    assert plain["prompt_tokens"] == adapted["prompt_tokens"]
    assert plain["output_tokens"] != adapted["output_tokens"]
    code, _, err = ask(folder("qwen3"), "--lora", f"{folder('llama')}/lora/adapter1")
    assert code == 1 and "expected" in err and err.count("\n") == 1


def test_sums_of_a_quantised_model_stay_near(ask: Callable[..., Any]) -> None:
    """Relative L2 of the logits of a model with random weights, which magnify every error: q8 0.05, q4 0.5."""
    reference = golden("qwen3")
    for weights, limit in (("auto", 1e-5), ("q8", 0.05), ("q4", 0.5)):
        engine = Engine.open(folder("qwen3"), device="cpu", weights=weights)  # type: ignore[arg-type]
        found = engine.logits(reference["ids_33"].tolist())[:, reference["cols"]]
        error = np.linalg.norm(found - reference["logits_33"]) / np.linalg.norm(reference["logits_33"])
        assert error <= limit
        engine.close()
