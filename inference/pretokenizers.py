"""How byte-level BPE vocabularies cut text into words before merging, by `tokenizer.ggml.pre`.

The expressions are those that each model was trained with, as GGUF readers know them by name. Every one is
applied to the pieces that the one before it left; what an expression does not match stays a piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from inference.errors import UnsupportedModel

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_GPT4O = _CASED % ((_CONTRACTIONS + "?",) * 2) + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
_TEKKEN = _CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES


@dataclass(frozen=True)
class PreTokenization:
    """`whole_words`: a piece that is itself in the vocabulary is taken whole, whatever the merges say."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False

    def build(self) -> PreTokenizer:
        """The pieces as the byte-level alphabet that the vocabulary is written in."""
        splits = [Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


_PLAIN_GPT2 = PreTokenization((_GPT2,))
_SINGLE_DIGITS = PreTokenization((r"\p{N}", _GPT2))
_PLAIN_LLAMA3 = PreTokenization((_LLAMA3,))

PRE_TOKENIZATIONS: Mapping[str, PreTokenization] = {
    "default": PreTokenization((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _PLAIN_GPT2,
    "phi-2": _PLAIN_GPT2,
    "mpt": _PLAIN_GPT2,
    "olmo": _PLAIN_GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "llama3": PreTokenization((_LLAMA3,), whole_words=True, add_bos=True),
    "llama-v3": PreTokenization((_LLAMA3,), whole_words=True, add_bos=True),
    "llama-bpe": PreTokenization((_LLAMA3,), whole_words=True, add_bos=True),
    "dbrx": _PLAIN_LLAMA3,
    "smaug-bpe": _PLAIN_LLAMA3,
    "qwen2": PreTokenization((_QWEN2,)),
    "stablelm2": PreTokenization((_QWEN2,)),
    "gpt-4o": PreTokenization((_GPT4O,)),
    "tekken": PreTokenization((_TEKKEN,), whole_words=True, add_bos=True),
}


def pre_tokenization(name: str) -> PreTokenization:
    """Looks a name up; raises UnsupportedModel, with the names that are known, where it is not one of them."""
    if name not in PRE_TOKENIZATIONS:
        raise UnsupportedModel(
            f"tokenizer.ggml.pre is {name!r}, which is not known here, only {', '.join(sorted(PRE_TOKENIZATIONS))}; "
            "text would be cut into the wrong tokens, so use a model with one of these"
        )
    return PRE_TOKENIZATIONS[name]
