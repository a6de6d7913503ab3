"""A model on this machine, opened but not loaded: a GGUF file, or a folder with config.json and safetensors."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from inference.errors import UnsupportedModel
from inference.formats.gguf import MAGIC, GGUFFile, open_gguf
from inference.formats.safetensors import SafetensorsFile, open_safetensors
from inference.formats.tensors import TensorFile
from inference.models.config import ModelConfig
from inference.models.families import config_from_gguf, config_from_hf, read_hf_config
from inference.weights import Precision, WeightStore


@dataclass(frozen=True)
class ModelFiles:
    """The config, the tensors it names, and the store that reads them. `path` is what was opened."""

    path: Path
    config: ModelConfig
    tensors: TensorFile
    store: WeightStore
    notices: tuple[str, ...]


def open_files(path: Path, precision: Precision = "auto") -> ModelFiles:
    """Open a .gguf file (any part of a split one), a folder with a config.json, or a .safetensors file in one.

    Reads descriptions only, no weights. `precision` is what the store makes of float matrices. Raises ModelNotFound,
    BadModelFile and UnsupportedModel.
    """
    tensors: GGUFFile | SafetensorsFile
    if _is_gguf(path):
        tensors = open_gguf(path)
        config = config_from_gguf(tensors)
    else:
        tensors = open_safetensors(path)
        config = config_from_hf(read_hf_config(tensors.path.parent), tensors)
    config = replace(config, name=model_name(tensors.path))
    store = WeightStore(tensors, config, precision)
    used = {tensor for stored in config.weights.values() for tensor in stored.tensors}
    if biases := [name for name in store.unused if name.removesuffix("bias") + "weight" in used]:
        raise UnsupportedModel(
            f"{path.name}: tensor {biases[0]} is a bias, which the {config.family} family is not run with here; "
            "use another conversion of this model"
        )
    notices = list(store.notices)
    if store.unused:
        notices.append(f"{path.name}: {len(store.unused)} tensors are not used: {', '.join(store.unused[:5])}")
    return ModelFiles(path, config, tensors, store, tuple(notices))


def _is_gguf(path: Path) -> bool:
    """By what the file begins with, since other programs keep GGUF files under names without an ending."""
    if path.suffix.lower() == ".gguf" or not path.is_file():
        return path.suffix.lower() == ".gguf"
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def model_name(path: Path) -> str:
    """What to call the model that a file belongs to: a GGUF by its own name, safetensors by their folder's.

    Folders in the hub's cache are named after commits, so there the repository's name counts.
    """
    if path.suffix.lower() == ".gguf":
        return re.sub(r"-\d{5}-of-\d{5}$", "", path.stem)
    folder = path.parent.absolute()
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name
