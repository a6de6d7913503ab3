"""Names of the weights in GGUF files, common to the families read so far."""

from __future__ import annotations

import numpy as np

from inference.errors import BadModelFile
from inference.formats.gguf import GGUFFile
from inference.formats.planar import from_ggml

LAYER_TENSORS = {
    "attention.norm": "attn_norm",
    "attention.q": "attn_q",
    "attention.k": "attn_k",
    "attention.v": "attn_v",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "attention.output": "attn_output",
    "attention.post_norm": "post_attention_norm",
    "feed_forward.norm": "ffn_norm",
    "feed_forward.gate": "ffn_gate",
    "feed_forward.up": "ffn_up",
    "feed_forward.down": "ffn_down",
    "feed_forward.post_norm": "post_ffw_norm",
}


def gguf_weight_names(file: GGUFFile, num_layers: int) -> dict[str, str]:
    """Canonical name -> tensor name, for the tensors that the file holds. The head falls back to the embedding."""
    names = {"embedding": "token_embd.weight", "final_norm": "output_norm.weight"}
    names["lm_head"] = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
    for layer in range(num_layers):
        for part in LAYER_TENSORS:
            name = layer_tensor(layer, part)
            if name in file.tensors:
                names[f"layers.{layer}.{part}"] = name
    return names


def layer_tensor(layer: int, part: str) -> str:
    """The tensor of a layer's part: (0, "attention.q") -> "blk.0.attn_q.weight"."""
    return f"blk.{layer}.{LAYER_TENSORS[part]}.weight"


def read_vector(file: GGUFFile, name: str) -> np.ndarray:
    """A one-dimensional tensor as float32 (columns,); raises BadModelFile where it has more dimensions."""
    info = file.tensors[name]
    if len(info.shape) != 1:
        raise BadModelFile(f"{file.path.name}: tensor {name} has shape {info.shape}, expected one dimension")
    return from_ggml(info.type, file.data(name), 1, info.shape[0]).dequantize()[0]
