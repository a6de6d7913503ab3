"""Model files that cannot be used: one line that names the file and the part, what was found and what was expected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from inference.errors import BadModelFile, GlasschatError, UnsupportedModel
from inference.models.families import GGUF_FAMILIES
from tests.inference.gguf_variants import rewrite
from tests.inference.opening import open_numpy, open_store

Tiny = Callable[[str], Path]
WIDE = {"blk.1.ffn_up.weight": np.zeros((128, 256), np.float32)}
"""A row as long as a block of the types that are not supported."""


def refusal(path: Path, error: type[GlasschatError]) -> str:
    """The message with which opening the file is refused."""
    with pytest.raises(error) as caught:
        open_numpy(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


@pytest.fixture
def change(tiny: Tiny, tmp_path: Path) -> Callable[..., Path]:
    """Writes a changed tiny llama and gives its path."""

    def write(family: str = "llama", **changes: Any) -> Path:
        return rewrite(tiny(family) / "gguf" / "model-f16.gguf", tmp_path / "changed.gguf", **changes)

    return write


def test_a_copy_without_changes_is_accepted(change: Callable[..., Path]) -> None:
    path = change()
    open_numpy(path)
    assert open_store(path)[1].unused == ()


def test_unknown_family(change: Callable[..., Path]) -> None:
    message = refusal(change(metadata={"general.architecture": "mamba"}), UnsupportedModel)
    assert "metadata general.architecture is 'mamba', a family that is not supported" in message
    assert message.endswith("the known families are " + ", ".join(sorted(GGUF_FAMILIES)))


def test_no_family(tmp_path: Path) -> None:
    path = tmp_path / "nothing.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.kv_data[0].pop("general.architecture")
    writer.add_string("general.name", "nothing")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "general.architecture is missing" in refusal(path, BadModelFile)


@pytest.mark.parametrize(
    "name", ["token_embd.weight", "output_norm.weight", "blk.3.attn_k.weight", "blk.0.ffn_norm.weight"]
)
def test_missing_tensor(change: Callable[..., Path], name: str) -> None:
    message = refusal(change(without=[name]), BadModelFile)
    assert "is missing" in message
    assert name in message


def test_missing_head_norm(change: Callable[..., Path]) -> None:
    message = refusal(change("gemma3_text", without=["blk.2.attn_q_norm.weight"]), BadModelFile)
    assert "blk.2.attn_q_norm.weight" in message


@pytest.mark.parametrize(
    ("name", "found", "expected"),
    [
        ("blk.1.attn_q.weight", (64, 32), (64, 64)),
        ("blk.1.attn_v.weight", (64, 64), (32, 64)),
        ("blk.2.ffn_down.weight", (128, 64), (64, 128)),
        ("blk.0.attn_norm.weight", (63,), (64,)),
        ("blk.0.attn_norm.weight", (1, 64), (64,)),
        ("token_embd.weight", (512, 32), (512, 64)),
        ("output_norm.weight", (2, 64), (64,)),
    ],
)
def test_wrong_shape(change: Callable[..., Path], name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    message = refusal(change(tensors={name: np.zeros(found, np.float32)}), BadModelFile)
    assert f"tensor {name} has shape {found}, expected {expected}" in message


def test_unsupported_tensor_type(change: Callable[..., Path]) -> None:
    path = change(types={"blk.1.ffn_up.weight": gguf.GGMLQuantizationType.TQ1_0}, tensors=WIDE)
    message = refusal(path, UnsupportedModel)
    assert "blk.1.ffn_up.weight has type TQ1_0" in message and "Q8_0" in message


def test_heads_that_cannot_share(change: Callable[..., Path]) -> None:
    message = refusal(change(metadata={"llama.attention.head_count_kv": 3}), BadModelFile)
    assert "4 attention heads cannot share 3 KV heads" in message


@pytest.mark.parametrize("dimensions", [17, 32])
def test_impossible_rope(change: Callable[..., Path], dimensions: int) -> None:
    message = refusal(change(metadata={"llama.rope.dimension_count": dimensions}), BadModelFile)
    assert f"rope turns {dimensions} columns of a head, expected an even number up to the head's 16" in message


@pytest.mark.parametrize(
    "key", ["llama.block_count", "llama.embedding_length", "llama.attention.layer_norm_rms_epsilon"]
)
def test_missing_metadata(change: Callable[..., Path], key: str) -> None:
    assert f"metadata {key} is missing" in refusal(change(without=[key]), BadModelFile)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", 0),
        ("llama.embedding_length", 2**31),
        ("llama.attention.layer_norm_rms_epsilon", float("nan")),
        ("llama.rope.freq_base", float("inf")),
    ],
)
def test_impossible_numbers(change: Callable[..., Path], key: str, value: float) -> None:
    assert f"metadata {key} is {value}" in refusal(change(metadata={key: value}), BadModelFile)


def test_more_layers_than_the_file_holds(change: Callable[..., Path]) -> None:
    message = refusal(change(metadata={"llama.block_count": 5}), BadModelFile)
    assert "blk.4.attn_norm.weight" in message


@pytest.mark.parametrize(("family", "architecture"), [("llama", "llama"), ("gemma3_text", "gemma3")])
def test_rope_scaling_that_is_not_known(change: Callable[..., Path], family: str, architecture: str) -> None:
    path = change(family, metadata={f"{architecture}.rope.scaling.type": "ntk"})
    expected = f"metadata {architecture}.rope.scaling.type is 'ntk', which is not supported (only none, linear, yarn"
    assert expected in refusal(path, UnsupportedModel)


def test_yarn_without_its_original_context(change: Callable[..., Path]) -> None:
    path = change(metadata={"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0})
    assert "llama.rope.scaling.original_context_length is missing" in refusal(path, BadModelFile)


def test_rope_scaling_by_nothing(change: Callable[..., Path]) -> None:
    path = change("gemma3_text", metadata={"gemma3.rope.scaling.factor": 0.0})
    assert "rope.scaling.factor is 0" in refusal(path, BadModelFile)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"general.type": "adapter"}, "general.type is 'adapter', expected 'model'"),
        ({"llama.expert_count": 8}, "llama.expert_count is 8, which is not supported (only 0: not Mixtral's experts)"),
        (
            {"llama.attention.value_length": 8},
            "value_length is 8, which is not supported (only 16, the length of a key)",
        ),
        (
            {"llama.attention.causal": False},
            "attention.causal is False, which is not supported (only true: models that",
        ),
    ],
)
def test_what_would_make_it_another_model(change: Callable[..., Path], metadata: dict[str, Any], expected: str) -> None:
    assert expected in refusal(change(metadata=metadata), UnsupportedModel)


def test_olmo_3_calls_itself_olmo2(change: Callable[..., Path]) -> None:
    path = change(metadata={"general.architecture": "olmo2", "olmo2.attention.sliding_window": 64})
    assert "sliding_window is 64, which is not supported (only none: OLMo 2, not OLMo 3)" in refusal(
        path, UnsupportedModel
    )


@pytest.mark.parametrize("name", ["blk.0.attn_q_norm.weight", "blk.9.attn_q.weight", "rope_factors_long.weight"])
def test_an_unused_tensor_is_known(change: Callable[..., Path], name: str) -> None:
    _, store = open_store(change(tensors={name: np.ones(16, np.float32)}))
    assert store.unused == (name,)


def test_a_bias_in_some_layers_only(change: Callable[..., Path]) -> None:
    """The first layer says which there are."""
    path = change(tensors={"blk.0.attn_q.bias": np.ones(64, np.float32)})
    assert "blk.1.attn_q.bias is missing" in refusal(path, BadModelFile)
