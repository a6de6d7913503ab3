"""What of a repository can be run: groups its files into choices, and picks the one that a name means.

A model is one GGUF file, one GGUF split into parts (`-00001-of-00003.gguf`), or the repository's safetensors with
their config and tokenizer; a LoRA adapter is one GGUF file or the two files that PEFT saves. Works on file names and
sizes alone, so that it reads a hub's listing, a snapshot in the hub's cache and a folder in the same way.
https://huggingface.co/docs/transformers names the files of a safetensors set, and
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md GGUF files of adapters: they end in `-LoRA.gguf`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

SAFETENSORS, PEFT = "safetensors", "PEFT"
"""The labels of choices that are not one GGUF but a folder of files: a model, an adapter."""

# Best first: the usual compromise of size and quality, then what is near it, then small ones, then the large ones.
PREFERRED = (
    *("Q4_K_M", "UD-Q4_K_XL", "Q4_1", "Q4_0", "Q4_K_S", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q6_K", "Q8_0"),
    *("MXFP4", "IQ4_NL", "IQ4_XS", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "F16", "BF16", "F32"),
)

PART = re.compile(r"-(?P<number>\d{5})-of-(?P<total>\d{5})(?=\.\w+$)")
QUANTIZATION = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|NVFP4\w*|BF16|F16|F32))$", re.IGNORECASE
)
WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
INDEX = "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model")
EXTRAS = ("generation_config.json", "tokenizer_config.json", "chat_template.jinja")
PEFT_FILES = ("adapter_config.json", "adapter_model.safetensors")


@dataclass(frozen=True)
class Choice:
    """One model or adapter of a repository.

    `name` is what `hub.resolve` takes, `label` the quantisation (or "safetensors" or "PEFT", or a GGUF's own name where
    that tells none), `files` what is fetched, in that order, `bytes` their size in all.
    """

    name: str
    label: str
    files: tuple[str, ...]
    bytes: int

    @property
    def is_folder(self) -> bool:
        """Whether it is the folder of its files; else it is its first file."""
        return self.label in (SAFETENSORS, PEFT)


def list_choices(sizes: Mapping[str, int], repo: str = "", revision: str = "main") -> tuple[Choice, ...]:
    """The models among files of these names and sizes in bytes: GGUFs by name, then safetensors.

    A set that lacks a part is no choice, nor are vision projectors (mmproj), importance matrices (imatrix), adapters.
    """
    sets = [(_label(files[0]), f"/{files[0]}", files) for files in _gguf_sets(sizes)]
    if files := _safetensors_set(sizes):
        sets.append((SAFETENSORS, f":{SAFETENSORS}", files))
    return _choices(sets, sizes, repo, revision)


def list_adapters(sizes: Mapping[str, int], repo: str = "", revision: str = "main") -> tuple[Choice, ...]:
    """The LoRA adapters among files of these names and sizes in bytes, best first.

    The one that PEFT saved, then GGUFs by name: those called adapters, or else any, since not all are.
    """
    ggufs = sorted(name for name in sizes if name.lower().endswith(".gguf") and not PART.search(name))
    sets = [(_label(name), f"/{name}", [name]) for name in [name for name in ggufs if _is_adapter(name)] or ggufs]
    if sizes.keys() >= set(PEFT_FILES):
        sets.insert(0, (PEFT, f":{PEFT}", list(PEFT_FILES)))
    return _choices(sets, sizes, repo, revision)


def choose(choices: Sequence[Choice], file: str | None = None, quantization: str | None = None) -> Choice:
    """The choice that holds `file`, or has this quantisation, or else the best: a GGUF before safetensors, and of
    GGUFs the first of PREFERRED, or the first by name where none of these is there.

    A quantisation is a choice's label, or else any part of its file's name between two separators; case does not
    matter. Raises LookupError, with words that read on after the repository's name, where no choice fits or several.
    """
    if not choices:
        raise LookupError("has no model that can be run: neither a GGUF, nor safetensors with config and tokenizer")
    if file is not None:
        fitting = [choice for choice in choices if file in choice.files]
    elif quantization is not None:
        wanted = quantization.upper()
        part = re.compile(rf"(?<![A-Z0-9]){re.escape(wanted)}(?![A-Z0-9])")
        fitting = [choice for choice in choices if choice.label.upper() == wanted] or [
            choice for choice in choices if part.search(_stem(choice.files[0]).upper()) and not choice.is_folder
        ]
    else:
        rank = {label: index for index, label in enumerate(PREFERRED)}
        return min(choices, key=lambda choice: (choice.is_folder, rank.get(choice.label, len(rank))))
    if not fitting:
        raise LookupError(f"has no whole {file or quantization}; it has {describe(choices)}")
    if len(fitting) > 1:
        raise LookupError(f"has several {quantization}: {describe(fitting)}; name the file")
    return fitting[0]


def choose_adapter(choices: Sequence[Choice], file: str | None = None, quantization: str | None = None) -> Choice:
    """As `choose`, for adapters: without a name it is the one that PEFT saved, or the only one."""
    if not choices:
        raise LookupError(f"has no adapter: neither {' and '.join(PEFT_FILES)}, nor a GGUF")
    if file is not None or quantization is not None:
        return choose(choices, file, quantization)
    if len(choices) > 1 and not choices[0].is_folder:
        raise LookupError(f"has several adapters: {describe(choices)}; name the file")
    return choices[0]


def describe(choices: Sequence[Choice]) -> str:
    """Choices in one line of a message."""
    return ", ".join(f"{choice.files[0]}" if not choice.is_folder else choice.label for choice in choices)


def lacking_parts(names: Collection[str], file: str) -> tuple[str, ...]:
    """The parts of the split GGUF `file` that are not among `names`; empty where it is whole or not split."""
    match = PART.search(file)
    if match is None:
        return ()
    return tuple(part for part in _part_names(file, match) if part not in names)


def _choices(
    sets: Iterable[tuple[str, str, Sequence[str]]], sizes: Mapping[str, int], repo: str, revision: str
) -> tuple[Choice, ...]:
    """Choices of sets, each with its label, what follows the repository in its name, and its files."""
    at = "" if revision == "main" else f"@{revision}"
    return tuple(
        Choice(f"{repo}{ending}{at}", label, tuple(files), sum(sizes[file] for file in files))
        for label, ending, files in sets
    )


def _part_names(file: str, match: re.Match[str]) -> list[str]:
    total = match["total"]
    return [f"{file[: match.start()]}-{n:05}-of-{total}{file[match.end() :]}" for n in range(1, int(total) + 1)]


def _gguf_sets(names: Mapping[str, int]) -> list[list[str]]:
    ggufs = sorted(name for name in names if name.lower().endswith(".gguf") and _is_model(name))
    whole = [[name] for name in ggufs if not PART.search(name)]
    firsts = {_part_names(name, match)[0]: match for name in ggufs if (match := PART.search(name))}
    split = [_part_names(first, match) for first, match in firsts.items() if not lacking_parts(ggufs, first)]
    return sorted(whole + split)


def _safetensors_set(names: Mapping[str, int]) -> list[str]:
    tokenizer = next((name for name in TOKENIZERS if name in names), None)
    weights = sorted(name for name in names if WEIGHTS.fullmatch(name))
    if "model.safetensors" in weights:
        weights = ["model.safetensors"]
    elif weights:
        weights = [] if INDEX not in names or lacking_parts(weights, weights[0]) else [INDEX, *weights]
    if not weights or tokenizer is None or "config.json" not in names:
        return []
    return ["config.json", tokenizer, *(name for name in EXTRAS if name in names), *weights]


def _is_model(name: str) -> bool:
    base = PurePosixPath(name).name.lower()
    # A model quantised with the help of an importance matrix may say so, but names its quantisation too.
    return "mmproj" not in base and ("imatrix" not in base or _label(name) != _stem(name)) and not _is_adapter(name)


def _is_adapter(name: str) -> bool:
    return _stem(name).lower().endswith("-lora")


def _stem(name: str) -> str:
    return PurePosixPath(PART.sub("", name)).stem


def _label(name: str) -> str:
    match = QUANTIZATION.search(_stem(name))
    return match[1].upper() if match else _stem(name)
