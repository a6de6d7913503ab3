"""Where a family's weights lie in a model file: the names of each file format, and which of them a config needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from inference.errors import BadModelFile
from inference.formats.planar import from_ggml
from inference.formats.tensors import TensorFile
from inference.models.config import LayerConfig, ModelConfig, StoredWeight


@dataclass(frozen=True)
class WeightNames:
    """How one file format names the tensors of one family.

    `layer` is the name of a layer's tensor without its ending, with {layer} and {part}; `parts` gives the {part} of
    each canonical one. Parts that are called the same are stored as one tensor, stacked by rows in the order here, or
    with `alternating` row by row in turn. `whole` gives the {part} of those whose names have no usual ending.
    `norm_offset` is added to every norm: 1 where the file holds the difference from 1. `transposed` are the parts that
    are stored as columns by rows where they are floats.
    """

    embedding: str
    final_norm: str
    lm_head: str
    layer: str
    parts: Mapping[str, str]
    norm_offset: float = 0.0
    whole: Mapping[str, str] = field(default_factory=dict)
    alternating: bool = False
    transposed: frozenset[str] = frozenset()

    def tensor(self, layer: int, part: str) -> str:
        """The name of the tensor that holds a part of a layer, or the bias of one ("attention.q.bias")."""
        if part in self.whole:
            return self.layer.format(layer=layer, part=self.whole[part])
        matrix = part.removesuffix(".bias")
        return self.layer.format(layer=layer, part=self.parts[matrix]) + (".weight" if matrix == part else ".bias")

    def found_in(self, file: TensorFile) -> WeightNames:
        """These names as the file spells them: base models leave out the "model." that most names begin with, and
        models that see images put "language_model." before or after it.
        """
        for prefix in ("model.", "", "language_model.model.", "model.language_model."):
            if prefix + self.embedding.removeprefix("model.") in file.tensors:
                names = [prefix + name.removeprefix("model.") for name in (self.embedding, self.final_norm, self.layer)]
                head = f"language_model.{self.lm_head}"
                return replace(
                    self,
                    embedding=names[0],
                    final_norm=names[1],
                    layer=names[2],
                    lm_head=head if head in file.tensors else self.lm_head,
                )
        return self


GGUF_NAMES = WeightNames(
    "token_embd.weight",
    "output_norm.weight",
    "output.weight",
    "blk.{layer}.{part}",
    {
        "attention.norm": "attn_norm",
        "attention.q": "attn_q",
        "attention.k": "attn_k",
        "attention.v": "attn_v",
        "attention.q_norm": "attn_q_norm",
        "attention.k_norm": "attn_k_norm",
        "attention.output": "attn_output",
        "attention.sinks": "attn_sinks",
        "attention.post_norm": "post_attention_norm",
        "feed_forward.norm": "ffn_norm",
        "feed_forward.gate": "ffn_gate",
        "feed_forward.up": "ffn_up",
        "feed_forward.down": "ffn_down",
        "feed_forward.router": "ffn_gate_inp",
        "feed_forward.expert_gate": "ffn_gate_exps",
        "feed_forward.expert_up": "ffn_up_exps",
        "feed_forward.expert_down": "ffn_down_exps",
        "feed_forward.post_norm": "post_ffw_norm",
    },
)


def weight_map(config: ModelConfig, names: WeightNames, tied: bool) -> dict[str, StoredWeight]:
    """Canonical name -> where it is stored, for every weight that a plan of `config` reads."""
    embedding = StoredWeight(names.embedding, 0, config.vocab_size)
    result = {
        "embedding": embedding,
        "lm_head": embedding if tied else StoredWeight(names.lm_head, 0, config.vocab_size),
        "final_norm": StoredWeight(names.final_norm, 0, 1, names.norm_offset, vector=True),
    }
    for layer, layer_config in enumerate(config.layers):
        rows = _part_rows(config, layer_config)
        rows |= {f"{part}.bias": rows[part] for part in rows if part in config.biases}
        tensors = {part: names.tensor(layer, part) for part in rows}
        sharing = Counter(tensors.values())
        ends = dict.fromkeys(sharing, 0)
        for part, tensor in tensors.items():
            result[f"layers.{layer}.{part}"] = StoredWeight(
                tensor,
                first_row=ends[tensor],
                rows=rows[part],
                offset=names.norm_offset if part.endswith("norm") else 0.0,
                experts=layer_config.experts.count if layer_config.experts and "expert_" in part else 0,
                row_step=sharing[tensor] if names.alternating else 1,
                transposed=part in names.transposed,
                vector=part.endswith(("norm", ".bias", ".sinks")),
            )
            ends[tensor] += 1 if names.alternating else rows[part]
    return result


def read_vector(file: TensorFile, name: str) -> np.ndarray:
    """A one-dimensional tensor as float32 (columns,); raises BadModelFile where it has more dimensions."""
    info = file.tensors[name]
    if len(info.shape) != 1:
        raise BadModelFile(f"{file.path.name}: tensor {name} has shape {info.shape}, expected one dimension")
    return from_ggml(info.type, file.data(name), 1, info.shape[0]).dequantize()[0]


def _part_rows(config: ModelConfig, layer: LayerConfig) -> dict[str, int]:
    """The parts of a layer that the config needs, with their rows; a norm has one, and experts are stacked."""
    rows = {
        "attention.q": config.q_size,
        "attention.k": config.kv_size,
        "attention.v": config.kv_size,
        "attention.output": config.hidden_size,
    }
    if layer.experts is None:
        rows |= {
            "feed_forward.gate": config.intermediate_size,
            "feed_forward.up": config.intermediate_size,
            "feed_forward.down": config.hidden_size,
        }
    else:
        experts = layer.experts
        rows |= {
            "feed_forward.router": experts.count,
            "feed_forward.expert_gate": experts.count * experts.intermediate_size,
            "feed_forward.expert_up": experts.count * experts.intermediate_size,
            "feed_forward.expert_down": experts.count * config.hidden_size,
        }
    if config.attention_sinks:
        rows["attention.sinks"] = config.num_heads
    if config.pre_norms:
        rows |= {"attention.norm": 1, "feed_forward.norm": 1}
    if config.post_norms:
        rows |= {"attention.post_norm": 1, "feed_forward.post_norm": 1}
    if config.qk_norm != "none":
        rows |= {"attention.q_norm": 1, "attention.k_norm": 1}
    return rows
