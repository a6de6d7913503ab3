"""Reads an adapter for a model, from a PEFT folder or a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from inference.errors import BadAdapter, GlasschatError, ModelNotFound
from inference.fetch.hub_cache import repository_of
from inference.formats.gguf import GGUFFile, open_gguf
from inference.formats.json_files import read_json
from inference.lora import peft
from inference.lora.adapter import Adapter, FoundPair, LowRank, assign, check_pair, pair_rows
from inference.lora.recognise import PEFT_CONFIG
from inference.models.config import ModelConfig
from inference.models.families import stored_names

A_ENDING, B_ENDING = ".weight.lora_a", ".weight.lora_b"


def read_adapter(path: Path, config: ModelConfig) -> Adapter:
    """The adapter at `path` (a PEFT folder, its safetensors file, or a GGUF adapter), checked against the model.

    Raises BadAdapter, which names the tensor, what was found and what was expected.
    """
    try:
        if path.suffix.lower() == ".gguf":
            return _read_gguf(path, config)
        return _read_peft(path if path.is_dir() else path.parent, config)
    except BadAdapter:
        raise
    except (GlasschatError, OSError) as error:
        named = "" if str(error).startswith(str(path)) else f"{path}: "
        raise BadAdapter(f"adapter {named}{error}") from None


def _read_peft(folder: Path, config: ModelConfig) -> Adapter:
    names = stored_names(config, "hf")
    if not (folder / PEFT_CONFIG).is_file():
        raise ModelNotFound(f"there is no {PEFT_CONFIG}; name a PEFT folder or a GGUF adapter")
    _, pairs = peft.read_pairs(folder, read_json(folder / PEFT_CONFIG))
    parts = assign(config, names.weights, pairs, folder)
    if config.layers[0].rope.interleaved:
        parts = pair_rows(config, parts, to_pairs=True)
    return Adapter(repository_of(folder) or folder.name, folder, parts)


def _read_gguf(path: Path, config: ModelConfig) -> Adapter:
    """Format: what llama.cpp's convert_lora_to_gguf.py writes; `adapter.lora.alpha` over the rank is the scale."""
    file = open_gguf(path)
    metadata = file.metadata
    for key, expected in (("general.type", "adapter"), ("adapter.type", "lora")):
        if metadata.get(key) != expected:
            raise BadAdapter(f"{path}: {key} is {metadata.get(key)!r}, expected {expected!r}: this is no LoRA adapter")
    names = stored_names(config, "gguf")
    architecture = metadata.get("general.architecture")
    if architecture != names.family:
        raise BadAdapter(
            f"{path}: is for the {architecture} family, the model is {names.family}; "
            "use an adapter that was made for this model"
        )
    parts = assign(config, names.weights, _gguf_pairs(file), path)
    if names.interleaved and not config.layers[0].rope.interleaved:
        parts = pair_rows(config, parts, to_pairs=False)
    return Adapter(path.stem, path, parts)


def _gguf_pairs(file: GGUFFile) -> Iterator[tuple[FoundPair, LowRank]]:
    alpha = file.metadata.get("adapter.lora.alpha", 0.0)
    if not isinstance(alpha, (int, float)):
        raise BadAdapter(f"{file.path}: metadata adapter.lora.alpha is {alpha!r}, expected a number")
    for name in file.tensors:
        module = name.removesuffix(A_ENDING).removesuffix(B_ENDING)
        if module == name:
            raise BadAdapter(f"{file.path}: tensor {name} is not a LoRA matrix; expected names that end in {A_ENDING}")
        other = module + (B_ENDING if name.endswith(A_ENDING) else A_ENDING)
        if other not in file.tensors:
            raise BadAdapter(f"{file.path}: tensor {name} has no {other} beside it; fetch the adapter again")
        if name.endswith(B_ENDING):
            continue
        rank = file.tensors[name].shape[0]
        pair = FoundPair(module, name, other, alpha / rank if alpha else 1.0)
        yield pair, check_pair(file, pair, None)
