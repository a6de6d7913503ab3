"""Which families are known, and by which name a file declares them."""

from __future__ import annotations

from collections.abc import Callable

from inference.errors import BadModelFile, UnsupportedModel
from inference.formats.gguf import GGUFFile
from inference.models import gemma3, llama
from inference.models.config import ModelConfig

GGUF_FAMILIES: dict[str, Callable[[GGUFFile], ModelConfig]] = {
    "llama": llama.config_from_gguf,
    "gemma3": gemma3.config_from_gguf,
}


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """The ModelConfig of a GGUF file.

    Raises UnsupportedModel for a family that is not known, BadModelFile for metadata that contradicts itself.
    """
    architecture = file.metadata.get("general.architecture")
    known = ", ".join(sorted(GGUF_FAMILIES))
    if architecture is None:
        raise BadModelFile(f"{file.path.name}: metadata general.architecture is missing; expected one of {known}")
    read = GGUF_FAMILIES.get(str(architecture))
    if read is None:
        raise UnsupportedModel(
            f"{file.path.name}: model family {str(architecture)!r} is not supported; the known families are {known}"
        )
    for name in ("token_embd.weight", "output_norm.weight"):
        if name not in file.tensors:
            raise BadModelFile(f"{file.path.name}: tensor {name} is missing; fetch the file again")
    config = read(file)
    _check(config, file.path.name)
    return config


def _check(config: ModelConfig, source: str) -> None:
    if config.num_heads % config.num_kv_heads:
        raise BadModelFile(
            f"{source}: {config.num_heads} attention heads cannot share {config.num_kv_heads} KV heads; "
            "expected a whole multiple"
        )
    for layer in config.layers:
        if layer.rope.rotary_dim > config.head_dim or layer.rope.rotary_dim % 2:
            raise BadModelFile(
                f"{source}: rope.dimension_count is {layer.rope.rotary_dim}, "
                f"expected an even number up to the head's {config.head_dim}"
            )
