"""The tiny models as GGUF files, by what the `gguf` package says of names: for families without a reference file.

llama.cpp's own converter is the model for the metadata and for the order of q's and k's rows.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import numpy as np

from inference.formats.planar import from_ggml
from inference.formats.safetensors import open_safetensors
from tests.inference.tiny_golden import folder

ARCHITECTURES = {
    "mistral": "llama", "llama_linear": "llama", "qwen2": "qwen2", "qwen2_yarn": "qwen2", "phi3": "phi3",
    "smollm3": "smollm3", "olmo2": "olmo2", "granite": "granite", "qwen3_moe": "qwen3moe",
}  # fmt: skip
"""By the name of the tiny model."""
NOT_IN_FULL = {"gpt_oss": "gpt-oss"}
"""Those that GGUF metadata do not describe in full: GPT-OSS's gate is clamped to 7, the tiny model's to 1.5."""
PERMUTED = ("llama", "smollm3", "granite")
"""Architectures whose rope turns adjacent columns."""


def convert(family: str, target: Path) -> Path:
    """Write the tiny model as an F32 GGUF file; returns `target`."""
    source = folder(family)
    values = json.loads((source / "config.json").read_text(encoding="utf-8"))
    architecture = (ARCHITECTURES | NOT_IN_FULL)[family]
    writer = gguf.GGUFWriter(target, architecture)
    heads, kv_heads = values["num_attention_heads"], values["num_key_value_heads"]
    head_dim = values.get("head_dim", values["hidden_size"] // heads)
    rope = values["rope_parameters"]
    writer.add_block_count(values["num_hidden_layers"])
    writer.add_context_length(values["max_position_embeddings"])
    writer.add_embedding_length(values["hidden_size"])
    writer.add_feed_forward_length(values["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(values["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    if values.get("sliding_window"):
        writer.add_sliding_window(values["sliding_window"])
    if rope["rope_type"] != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "attention_factor" in rope:
            writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
    if "num_local_experts" in values:
        writer.add_key_length(head_dim)
        writer.add_expert_count(values["num_local_experts"])
        writer.add_expert_used_count(values["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(values.get("moe_intermediate_size", values["intermediate_size"]))
    if architecture == "granite":
        writer.add_embedding_scale(values["embedding_multiplier"])
        writer.add_attention_scale(values["attention_multiplier"])
        writer.add_residual_scale(values["residual_multiplier"])
        writer.add_logit_scale(values["logits_scaling"])
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    # Converters know no layers without experts in a family that has them; llama's names are those of all.
    maps = [gguf.get_tensor_name_map(known, values["num_hidden_layers"]) for known in (kind, gguf.MODEL_ARCH.LLAMA)]
    for name, tensor in stack_experts(read_tensors(source)).items():
        if architecture in PERMUTED and ".q_proj." in name:
            tensor = permute(tensor, heads)
        if architecture in PERMUTED and ".k_proj." in name:
            tensor = permute(tensor, kv_heads)
        written = [names.get_name(name, try_suffixes=(".weight", ".bias")) for names in maps]
        writer.add_tensor(next(found for found in written if found), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def read_tensors(source: Path) -> dict[str, np.ndarray]:
    """The tensors of a folder as float32, by name."""
    file = open_safetensors(source)
    return {
        name: from_ggml(info.type, file.data(name), int(np.prod(info.shape[:-1])), info.shape[-1])
        .dequantize()
        .reshape(info.shape)
        for name, info in file.tensors.items()
    }


def stack_experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors with experts as GGUF files have them: gate, up and down, each (expert, row, column)."""
    result: dict[str, np.ndarray] = {}
    of_one: dict[str, list[np.ndarray]] = {}
    for name, tensor in tensors.items():
        if found := re.fullmatch(r"(.*\.experts)\.\d+(\..*)", name):
            of_one.setdefault("".join(found.groups()), []).append(tensor)
        elif found := re.fullmatch(r"(.*\.experts\.)(\w+_proj)(_bias)?", name):
            start, part, ending = found[1], found[2], ".bias" if found[3] else ".weight"
            rows = tensor if found[3] else tensor.swapaxes(1, 2)  # (expert, row[, column])
            pieces = {"gate_proj": rows[:, 0::2], "up_proj": rows[:, 1::2]} if part == "gate_up_proj" else {part: rows}
            result |= {start + key + ending: np.ascontiguousarray(piece) for key, piece in pieces.items()}
        else:
            result[name.replace(".sinks", ".sinks.weight")] = tensor
    return result | {name: np.stack(matrices) for name, matrices in of_one.items()}


def permute(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Rows so that a rope of adjacent columns turns what one of halves turned before."""
    return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
