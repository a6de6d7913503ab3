"""What of a repository can be run: groups its files into choices, and picks the one that a name means.

A choice is one GGUF file, one GGUF split into parts (`-00001-of-00003.gguf`), or the repository's safetensors with
their config and tokenizer. Works on file names and sizes alone, so that it reads a hub's listing, a snapshot in the
hub's cache and a folder in the same way. https://huggingface.co/docs/transformers names the files of a safetensors set.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

SAFETENSORS = "safetensors"
"""The label of a choice that is not one GGUF but a folder of files."""

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


@dataclass(frozen=True)
class Choice:
    """One model of a repository.

    `name` is what `hub.resolve` takes, `label` the quantisation (or "safetensors", or a GGUF's own name where that
    tells none), `files` what is fetched, in that order, `bytes` their size in all.
    """

    name: str
    label: str
    files: tuple[str, ...]
    bytes: int

    @property
    def is_folder(self) -> bool:
        """Whether the model is the folder of its files; else it is its first file."""
        return self.label == SAFETENSORS


def list_choices(sizes: Mapping[str, int], repo: str = "", revision: str = "main") -> tuple[Choice, ...]:
    """The choices among files of these names and sizes in bytes: GGUFs by name, then safetensors.

    A set that lacks a part is no choice, nor are vision projectors (mmproj) and importance matrices (imatrix).
    """
    at = "" if revision == "main" else f"@{revision}"

    def choice(label: str, files: Sequence[str], of_name: str) -> Choice:
        return Choice(f"{repo}{of_name}{at}", label, tuple(files), sum(sizes[file] for file in files))

    found = [choice(_label(files[0]), files, f"/{files[0]}") for files in _gguf_sets(sizes)]
    if files := _safetensors_set(sizes):
        found.append(choice(SAFETENSORS, files, f":{SAFETENSORS}"))
    return tuple(found)


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


def describe(choices: Sequence[Choice]) -> str:
    """Choices in one line of a message."""
    return ", ".join(f"{choice.files[0]}" if not choice.is_folder else SAFETENSORS for choice in choices)


def lacking_parts(names: Collection[str], file: str) -> tuple[str, ...]:
    """The parts of the split GGUF `file` that are not among `names`; empty where it is whole or not split."""
    match = PART.search(file)
    if match is None:
        return ()
    return tuple(part for part in _part_names(file, match) if part not in names)


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
    return "mmproj" not in base and ("imatrix" not in base or _label(name) != _stem(name))


def _stem(name: str) -> str:
    return PurePosixPath(PART.sub("", name)).stem


def _label(name: str) -> str:
    match = QUANTIZATION.search(_stem(name))
    return match[1].upper() if match else _stem(name)
