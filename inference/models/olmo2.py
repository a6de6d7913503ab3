"""OLMo 2: norms after each part and none before; q and k are normalised over their whole width (arXiv:2501.00656)."""

from __future__ import annotations

from dataclasses import replace

from inference.formats.gguf import GGUFFile
from inference.models import llama
from inference.models.common import HF_NAMES, POST_NORM_PARTS, Family, gguf_config
from inference.models.config import ModelConfig
from inference.models.fields import Fields


def config_from_hf(fields: Fields) -> ModelConfig:
    return _with_post_norms(llama.config_from_hf(fields))


def config_from_gguf(file: GGUFFile, fields: Fields) -> ModelConfig:
    if fields.has("attention.sliding_window"):
        window = fields.integer("attention.sliding_window")
        raise fields.unsupported("attention.sliding_window", window, "none: OLMo 2, not OLMo 3")
    return _with_post_norms(gguf_config(file, fields))


def _with_post_norms(config: ModelConfig) -> ModelConfig:
    return replace(config, pre_norms=False, post_norms=True, qk_norm="projection")


FAMILY = Family(
    config_from_hf,
    config_from_gguf,
    replace(HF_NAMES, parts={**HF_NAMES.parts, **POST_NORM_PARTS}),
    hf_defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
)
