"""Which families are known, by the names that files declare them with, and the config of an open model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from inference.errors import BadModelFile, UnsupportedModel
from inference.formats.gguf import GGUFFile
from inference.formats.tensors import TensorFile
from inference.models import gemma2, gemma3, gpt_oss, granite, llama, mistral, olmo2, phi3, qwen, qwen_moe, smollm3
from inference.models.common import Family, with_interleaved_rope
from inference.models.config import ModelConfig, StoredWeight
from inference.models.fields import Fields
from inference.models.weights import WeightNames, weight_map

HF_FAMILIES: Mapping[str, Family] = {
    "llama": llama.FAMILY,
    "mistral": mistral.FAMILY,
    "qwen2": qwen.QWEN2,
    "qwen3": qwen.QWEN3,
    "qwen3_moe": qwen_moe.FAMILY,
    "gemma2": gemma2.FAMILY,
    "gemma3_text": gemma3.TEXT,
    "gemma3": gemma3.WITH_IMAGES,
    "phi3": phi3.FAMILY,
    "smollm3": smollm3.FAMILY,
    "olmo2": olmo2.FAMILY,
    "granite": granite.FAMILY,
    "gpt_oss": gpt_oss.FAMILY,
}
"""By `model_type` in config.json."""

_GGUF_NAMES = {"mistral": "llama", "gemma3_text": "gemma3", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss"}
"""Families that GGUF files call otherwise, some of them by the name of another family."""

GGUF_FAMILIES: Mapping[str, Family] = {
    _GGUF_NAMES.get(name, name): family
    for name, family in HF_FAMILIES.items()
    if _GGUF_NAMES.get(name) not in HF_FAMILIES
}
"""By `general.architecture` in GGUF metadata."""


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """The ModelConfig of a GGUF file.

    Raises UnsupportedModel for a family that is not known, BadModelFile for metadata that contradicts itself.
    """
    where = file.path.name
    family = _family(
        GGUF_FAMILIES, file.metadata.get("general.architecture"), f"{where}: metadata general.architecture"
    )
    if (kind := file.metadata.get("general.type", "model")) != "model":
        raise UnsupportedModel(f"{where}: metadata general.type is {kind!r}, expected 'model'; name the model itself")
    names = family.gguf_names
    for name in (names.embedding, names.final_norm):
        if name not in file.tensors:
            raise BadModelFile(f"{where}: tensor {name} is missing; fetch the file again")
    architecture = file.metadata["general.architecture"]
    fields = Fields(file.metadata, f"{where}: metadata", f"{architecture}.")
    config = family.config_from_gguf(file, fields)
    if family.gguf_interleaved:
        config = with_interleaved_rope(config)
    return _finish(config, where, names, tied=names.lm_head not in file.tensors)


def config_from_hf(values: Mapping[str, Any], file: TensorFile) -> ModelConfig:
    """The ModelConfig of a folder with config.json, whose `values` these are, and safetensors.

    Raises UnsupportedModel for a family that is not known, BadModelFile for values that contradict each other.
    """
    where = str(file.path.parent / "config.json")
    family = _family(HF_FAMILIES, values.get("model_type"), f"{where}: model_type")
    fields = Fields(values, f"{where}:", defaults={} if family.hf_group else family.hf_defaults)
    _check_purpose(fields)
    names = family.hf_names.found_in(file)
    # Where it is left out, its default depends on the family and on whether the model sees images; the tensors tell.
    tied = fields.flag("tie_word_embeddings", names.lm_head not in file.tensors)
    text = fields.group(family.hf_group, family.hf_defaults) if family.hf_group else fields
    return _finish(family.config_from_hf(text), where, names, tied)


@dataclass(frozen=True)
class StoredNames:
    """How files of one format hold a model: the family's name there, its weights, and the order of q's and k's rows."""

    family: str
    weights: Mapping[str, StoredWeight]
    interleaved: bool


def stored_names(config: ModelConfig, file_format: Literal["hf", "gguf"]) -> StoredNames:
    """What `config`'s model is called in files of a format, whichever it was read from itself: for its adapters."""
    if file_format == "hf":
        family = HF_FAMILIES.get(config.family) or GGUF_FAMILIES[config.family]
        return StoredNames(config.family, weight_map(config, family.hf_names, tied=False), False)
    name = _GGUF_NAMES.get(config.family, config.family)
    family = GGUF_FAMILIES[name]
    return StoredNames(name, weight_map(config, family.gguf_names, tied=False), family.gguf_interleaved)


def read_hf_config(folder: Path) -> dict[str, Any]:
    """The values of a folder's config.json. Raises BadModelFile where it is missing or no JSON object."""
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadModelFile(f"{path}: cannot be read as JSON ({error}); fetch the model again") from None
    if not isinstance(values, dict):
        raise BadModelFile(f"{path}: holds {type(values).__name__}, expected an object; fetch the model again")
    return values


def _family(families: Mapping[str, Family], name: object, where: str) -> Family:
    known = ", ".join(sorted(families))
    if name is None:
        raise BadModelFile(f"{where} is missing; expected one of {known}")
    if not isinstance(name, str) or name not in families:
        raise UnsupportedModel(f"{where} is {name!r}, a family that is not supported; the known families are {known}")
    return families[name]


def _check_purpose(fields: Fields) -> None:
    """Raises UnsupportedModel for a model that does not write text, or whose weights are packed but not as MXFP4."""
    architectures = fields.items("architectures") if fields.has("architectures") else []
    if architectures and not str(architectures[0]).endswith(("ForCausalLM", "ForConditionalGeneration")):
        raise fields.unsupported("architectures", architectures[0], "...ForCausalLM: models that write text")
    packing = fields.group("quantization_config")
    if packing.has("quant_method") and packing.text("quant_method") != "mxfp4":
        raise UnsupportedModel(
            f"{packing.source} quantization_config.quant_method is {packing.text('quant_method')!r}, a packing of "
            "weights that is not read; use the folder with the original weights, with --weights q8 or q4, or a GGUF"
        )


def _finish(config: ModelConfig, where: str, names: WeightNames, tied: bool) -> ModelConfig:
    """The config with its weights, checked."""
    if config.num_heads % config.num_kv_heads:
        raise BadModelFile(
            f"{where}: {config.num_heads} attention heads cannot share {config.num_kv_heads} KV heads; "
            "expected a whole multiple"
        )
    for layer in config.layers:
        if layer.rope.rotary_dim > config.head_dim or layer.rope.rotary_dim % 2:
            raise BadModelFile(
                f"{where}: rope turns {layer.rope.rotary_dim} columns of a head, "
                f"expected an even number up to the head's {config.head_dim}"
            )
        experts = layer.experts
        if experts is not None and experts.per_token > experts.count:
            raise BadModelFile(
                f"{where}: {experts.per_token} experts a token, expected at most {experts.count}, which a layer has"
            )
    return replace(config, weights=weight_map(config, names, tied))
