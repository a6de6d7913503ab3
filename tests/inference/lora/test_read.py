"""Adapter files: both formats, PEFT's patterns, and what is refused."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from inference.errors import BadAdapter
from inference.lora.adapter import Adapter
from inference.lora.read import read_adapter
from inference.models.config import ModelConfig
from tests.inference.opening import open_store
from tests.inference.tiny_golden import folder

RANK, HIDDEN = 4, 64
Q = "base_model.model.model.layers.0.self_attn.q_proj"
UP = "base_model.model.model.layers.1.mlp.up_proj"


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return open_store(folder("llama") / "config.json")[0]


@pytest.fixture(scope="module")
def gguf_config() -> ModelConfig:
    return open_store(folder("llama") / "gguf" / "model-f16.gguf")[0]


def pair(rows: int, columns: int = HIDDEN, rank: int = RANK, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rank, columns)).astype(np.float32), rng.normal(size=(rows, rank)).astype(np.float32)


def tensors(**other: np.ndarray) -> dict[str, np.ndarray]:
    """An adapter on q of layer 0 and up of layer 1."""
    (qa, qb), (ua, ub) = pair(64), pair(128, seed=1)
    return {
        f"{Q}.lora_A.weight": qa,
        f"{Q}.lora_B.weight": qb,
        f"{UP}.lora_A.weight": ua,
        f"{UP}.lora_B.weight": ub,
    } | other


def write_peft(path: Path, held: Mapping[str, np.ndarray], **values: Any) -> Path:
    path.mkdir(exist_ok=True)
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj"]} | values
    (path / "adapter_config.json").write_text(json.dumps(settings))
    save_file(dict(held), path / "adapter_model.safetensors")
    return path


def scales(adapter: Adapter, held: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """What b was multiplied by, for q and up."""
    q, up = adapter.parts["layers.0.attention.q"], adapter.parts["layers.1.feed_forward.up"]
    return (
        float((q.b / held[f"{Q}.lora_B.weight"]).mean()),
        float((up.b / held[f"{UP}.lora_B.weight"]).mean()),
    )


def test_scale_is_alpha_over_rank_or_over_its_root(tmp_path: Path, config: ModelConfig) -> None:
    held = tensors()
    plain = read_adapter(write_peft(tmp_path / "plain", held), config)
    assert scales(plain, held) == pytest.approx((2.0, 2.0))
    assert (plain.name, plain.ranks) == ("plain", (4,))
    root = read_adapter(write_peft(tmp_path / "root", held, use_rslora=True), config)
    assert scales(root, held) == pytest.approx((4.0, 4.0))


def test_patterns_set_rank_and_alpha_of_single_modules(tmp_path: Path, config: ModelConfig) -> None:
    held = tensors()
    held[f"{UP}.lora_A.weight"], held[f"{UP}.lora_B.weight"] = pair(128, rank=2)
    path = write_peft(
        tmp_path / "a", held, rank_pattern={"layers.1.mlp.up_proj": 2}, alpha_pattern={r".*layers\.0\..*": 12}
    )
    adapter = read_adapter(path, config)
    assert adapter.ranks == (2, 4)
    assert scales(adapter, held) == pytest.approx((12 / 4, 8 / 2))


@pytest.mark.parametrize("targets", [r".*\.(q|up)_proj", "all-linear", None])
def test_targets_may_be_a_pattern_or_all(tmp_path: Path, config: ModelConfig, targets: str | None) -> None:
    assert len(read_adapter(write_peft(tmp_path / "a", tensors(), target_modules=targets), config).parts) == 2


def test_an_adapter_on_a_tensor_of_several_projections_is_divided(tmp_path: Path) -> None:
    config, _ = open_store(folder("phi3") / "config.json")
    module = "base_model.model.model.layers.0.self_attn.qkv_proj"
    a, b = pair(128)
    path = write_peft(
        tmp_path / "a", {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}, target_modules=["qkv_proj"]
    )
    parts = read_adapter(path, config).parts
    np.testing.assert_array_equal(parts["layers.0.attention.k"].b, 2 * b[64:96])
    np.testing.assert_array_equal(parts["layers.0.attention.v"].a, a)


def write_gguf(path: Path, arch: str = "llama", drop: str = "", **extra: np.ndarray) -> dict[str, np.ndarray]:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    a, b = pair(64)
    held = {"blk.0.attn_q.weight.lora_a": a, "blk.0.attn_q.weight.lora_b": b} | extra
    for name, array in held.items():
        if name != drop:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def test_gguf_adapters_have_q_in_the_order_of_pairs(
    tmp_path: Path, config: ModelConfig, gguf_config: ModelConfig
) -> None:
    held = write_gguf(tmp_path / "a.gguf")
    b = 2 * held["blk.0.attn_q.weight.lora_b"]
    np.testing.assert_array_equal(read_adapter(tmp_path / "a.gguf", gguf_config).parts["layers.0.attention.q"].b, b)
    found = read_adapter(tmp_path / "a.gguf", config).parts["layers.0.attention.q"].b
    # Of each head (4 heads of 16), the even rows come first, then the odd ones.
    expected = b.reshape(4, 8, 2, RANK).transpose(0, 2, 1, 3).reshape(64, RANK)
    np.testing.assert_array_equal(found, expected)


def test_peft_adapters_on_gguf_models_are_reordered_as_the_model_was(
    tmp_path: Path, config: ModelConfig, gguf_config: ModelConfig
) -> None:
    path = write_peft(tmp_path / "a", tensors())
    halves = read_adapter(path, config).parts["layers.0.attention.q"].b
    pairs = read_adapter(path, gguf_config).parts["layers.0.attention.q"].b
    np.testing.assert_array_equal(pairs.reshape(4, 8, 2, RANK).transpose(0, 2, 1, 3).reshape(64, RANK), halves)


Change = Callable[[Path], Path]
A, B = pair(64)

REFUSED: dict[str, tuple[Change, str]] = {
    "another kind": (lambda p: write_peft(p, tensors(), peft_type="LOHA"), "peft_type is 'LOHA', expected 'LORA'"),
    "whole modules": (lambda p: write_peft(p, tensors(), modules_to_save=["lm_head"]), "modules_to_save names lm_head"),
    "dora": (lambda p: write_peft(p, tensors(), use_dora=True), "use_dora is True, which is not supported"),
    "biases": (lambda p: write_peft(p, tensors(), bias="all"), "bias is 'all', expected 'none'"),
    "no alpha": (lambda p: write_peft(p, tensors(), lora_alpha=None), "lora_alpha is None, expected a number above 0"),
    "another rank": (
        lambda p: write_peft(p, tensors(), r=6),
        rf"tensor {Q}.lora_A.weight has shape \(4, 64\), expected \(6, 64\)",
    ),
    "a target without tensors": (
        lambda p: write_peft(p, tensors(), target_modules=["q_proj", "up_proj", "v_proj"]),
        "target_modules names v_proj, which has no tensors",
    ),
    "tensors without a target": (
        lambda p: write_peft(p, tensors(), target_modules=["q_proj"]),
        "target_modules does not name model.layers.1.mlp.up_proj",
    ),
    "a pattern that does not match": (
        lambda p: write_peft(p, tensors(), target_modules=".*q_proj"),
        "target_modules .* does not match model.layers.1.mlp.up_proj",
    ),
    "no pattern": (lambda p: write_peft(p, tensors(), target_modules="("), "is no regular expression"),
    "one side missing": (
        lambda p: write_peft(p, {k: v for k, v in tensors().items() if k != f"{Q}.lora_B.weight"}),
        "model.layers.0.self_attn.q_proj has no lora_B",
    ),
    "another shape": (
        lambda p: write_peft(p, tensors(**{f"{Q}.lora_B.weight": np.ones((32, RANK), np.float32)})),
        "are for a matrix of 32 x 64, expected 64 x 64",
    ),
    "another model's layer": (
        lambda p: write_peft(
            p, tensors(**{f"{Q.replace('.0.', '.9.')}.lora_{s}.weight": m for s, m in (("A", A), ("B", B))})
        ),
        "model.layers.9.self_attn.q_proj, which is no projection",
    ),
    "an embedding": (
        lambda p: write_peft(p, tensors(**{"base_model.model.model.embed_tokens.lora_embedding_A": A})),
        "embed_tokens.lora_embedding_A is not a LoRA matrix",
    ),
    "integers": (
        lambda p: write_peft(p, tensors(**{f"{Q}.lora_A.weight": np.ones((RANK, HIDDEN), np.int32)})),
        f"tensor {Q}.lora_A.weight is I32",
    ),
    "a model's folder": (lambda p: folder("llama"), "there is no adapter_config.json"),
    "nothing": (lambda p: p / "missing", "there is no adapter_config.json"),
    "a model": (lambda p: folder("llama") / "gguf" / "model-f16.gguf", "expected 'adapter': this is no LoRA adapter"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, config: ModelConfig, case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(BadAdapter, match=message) as error:
        read_adapter(make(tmp_path / "a"), config)
    assert "\n" not in str(error.value)


def test_refused_gguf(tmp_path: Path, config: ModelConfig) -> None:
    write_gguf(tmp_path / "other.gguf", arch="qwen3")
    with pytest.raises(BadAdapter, match="is for the qwen3 family, the model is llama"):
        read_adapter(tmp_path / "other.gguf", config)
    write_gguf(tmp_path / "half.gguf", drop="blk.0.attn_q.weight.lora_b")
    with pytest.raises(BadAdapter, match=r"has no blk.*lora_b beside it"):
        read_adapter(tmp_path / "half.gguf", config)
    write_gguf(tmp_path / "stray.gguf", **{"blk.0.attn_norm.weight": np.ones(64, np.float32)})
    with pytest.raises(BadAdapter, match=r"blk\.0\.attn_norm\.weight is not a LoRA matrix"):
        read_adapter(tmp_path / "stray.gguf", config)


def test_damaged_files(tmp_path: Path, config: ModelConfig) -> None:
    path = write_peft(tmp_path / "a", tensors())
    weights = path / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-10])
    with pytest.raises(BadAdapter, match=r"adapter_model\.safetensors") as told:
        read_adapter(path, config)
    assert str(told.value).count(str(path)) == 1
    weights.write_bytes(whole)
    assert load_file(weights)
    (path / "adapter_config.json").write_text("{")
    with pytest.raises(BadAdapter, match="is not JSON"):
        read_adapter(path, config)
