"""Reads LoRA adapters as PEFT saves them: a folder with adapter_config.json and adapter_model.safetensors.

Keys: https://huggingface.co/docs/peft/package_reference/lora. What a config asks for beyond plain LoRA (DoRA, whole
modules, biases) is refused by name, since leaving it out would give another model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from inference.errors import BadAdapter
from inference.formats.safetensors import SafetensorsFile, open_safetensors
from inference.lora.adapter import FoundPair, LowRank, check_pair
from inference.lora.recognise import PEFT_CONFIG

WEIGHTS = "adapter_model.safetensors"
# "base_model.model." is PEFT's own wrapper; "default" the name of an adapter, which some versions keep.
_KEY = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight")
_REFUSED = (
    "use_dora",
    "fan_in_fan_out",
    "lora_bias",
    "use_qalora",
    "use_bdlora",
    "target_parameters",
    "layer_replication",
)
_TENSOR_ADVICE = "save the adapter with PEFT's plain LoRA"


def read_pairs(folder: Path, values: Mapping[str, Any]) -> tuple[SafetensorsFile, Iterator[tuple[FoundPair, LowRank]]]:
    """The file of a PEFT folder, whose adapter_config.json holds `values`, and its matrices one after another.

    Raises BadAdapter for what is not plain LoRA, for tensors that contradict the config, and for stray tensors.
    """
    where = folder / PEFT_CONFIG
    _check_config(values, where)
    file = open_safetensors(folder / WEIGHTS)
    sides: dict[str, dict[str, str]] = {}
    for name in file.tensors:
        match = _KEY.fullmatch(name)
        if match is None:
            raise BadAdapter(f"{file.path}: tensor {name} is not a LoRA matrix of a projection; {_TENSOR_ADVICE}")
        sides.setdefault(match["module"], {})[match["side"]] = name
    for module, names in sides.items():
        if missing := {"A", "B"} - names.keys():
            raise BadAdapter(f"{file.path}: {module} has no lora_{missing.pop()}; save or fetch the adapter again")
    _check_targets(values, sides, where)

    def pairs() -> Iterator[tuple[FoundPair, LowRank]]:
        for module, names in sides.items():
            rank = _pattern(values, "rank_pattern", module, "r")
            alpha = _pattern(values, "alpha_pattern", module, "lora_alpha")
            scale = alpha / (math.sqrt(rank) if values.get("use_rslora") else rank)
            pair = FoundPair(module, names["A"], names["B"], scale)
            yield pair, check_pair(file, pair, int(rank))

    return file, pairs()


def _check_config(values: Mapping[str, Any], where: Path) -> None:
    kind = values.get("peft_type")
    if kind != "LORA":
        raise BadAdapter(f"{where}: peft_type is {kind!r}, expected 'LORA'; other kinds of adapters are not supported")
    for key in ("r", "lora_alpha"):
        value = values.get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
            raise BadAdapter(f"{where}: {key} is {value!r}, expected a number above 0")
    if saved := values.get("modules_to_save"):
        raise BadAdapter(
            f"{where}: modules_to_save names {', '.join(map(str, saved))}; only low-rank parts can be used"
        )
    if values.get("bias", "none") != "none":
        raise BadAdapter(f"{where}: bias is {values['bias']!r}, expected 'none'; trained biases cannot be used")
    for key in _REFUSED:
        if values.get(key):
            raise BadAdapter(f"{where}: {key} is {values[key]!r}, which is not supported; {_TENSOR_ADVICE}")


def _check_targets(values: Mapping[str, Any], modules: Mapping[str, object], where: Path) -> None:
    """The tensors say where the adapter acts; the config must say the same."""
    targets = values.get("target_modules")
    if targets is None or targets == "all-linear":
        return
    if isinstance(targets, str):
        matches = [module for module in modules if _fullmatch(targets, module, where)]
        if stray := modules.keys() - set(matches):
            raise BadAdapter(
                f"{where}: target_modules {targets!r} does not match {sorted(stray)[0]}, which has tensors"
            )
        return
    if not isinstance(targets, Sequence) or not all(isinstance(target, str) for target in targets):
        raise BadAdapter(f"{where}: target_modules is {targets!r}, expected a list of names or a pattern")
    for target in targets:
        if not any(module == target or module.endswith(f".{target}") for module in modules):
            raise BadAdapter(f"{where}: target_modules names {target}, which has no tensors; fetch the adapter again")
    for module in modules:
        if not any(module == target or module.endswith(f".{target}") for target in targets):
            raise BadAdapter(f"{where}: target_modules does not name {module}, which has tensors")


def _pattern(values: Mapping[str, Any], patterns: str, module: str, default: str) -> float:
    """The value of a module: of the first pattern that its name ends with, else the default."""
    for pattern, value in (values.get(patterns) or {}).items():
        if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module):
            return value
    return values[default]


def _fullmatch(pattern: str, text: str, where: Path) -> bool:
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error as error:
        raise BadAdapter(f"{where}: target_modules is no regular expression: {pattern!r} ({error})") from None
