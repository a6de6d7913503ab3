"""The two kinds of tokenizers that GGUF metadata describe.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section on the tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import models, normalizers

from inference.added_tokens import Matching
from inference.errors import BadModelFile, UnsupportedModel
from inference.formats.gguf import MetaValue, StringArray
from inference.pretokenizers import pre_tokenization
from inference.sentencepiece import as_text_pairs, cached_merges
from inference.stop_tokens import gather_stops
from inference.vocabulary import SPACE, TokenType, Vocabulary, is_byte_token

_END_ROLES = ("eos", "eot", "eom")
_TEMPLATE_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def read_tokenizer_gguf(
    metadata: Mapping[str, MetaValue], cache_folder: Path | None
) -> tuple[Vocabulary, tokenizers.Tokenizer]:
    """Reads the `tokenizer.ggml` keys. Raises UnsupportedModel for other kinds, BadModelFile where keys disagree."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModel(
            f"tokenizer.ggml.model is {kind!r}, expected 'gpt2' (byte-level BPE) or 'llama' (SentencePiece BPE); "
            "use a model with one of these tokenizers"
        )
    vocabulary = _read_vocabulary(metadata, sentencepiece=kind == "llama")
    if vocabulary.sentencepiece:
        return vocabulary, _sentencepiece(vocabulary, metadata, cache_folder)
    return vocabulary, _byte_level(vocabulary, metadata)


def _read_vocabulary(metadata: Mapping[str, MetaValue], sentencepiece: bool) -> Vocabulary:
    texts = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(texts, StringArray) or not len(texts):
        raise _wrong("tokens", "is not a list of strings", "the vocabulary")
    tokens = list(texts)
    types = _numbers(metadata, "token_type", len(tokens)).astype(np.int32)
    bad_bytes = [t for i in np.flatnonzero(types == TokenType.BYTE).tolist() if not is_byte_token(t := tokens[i])]
    if bad_bytes:
        raise _wrong("tokens", f"has the byte token {bad_bytes[0]!r}", "the form <0xHH>")
    ids = {role: _token_id(metadata, role, len(tokens)) for role in (*_TEMPLATE_NAMES, *_END_ROLES)}
    bos, eos = ids["bos"], ids["eos"]
    add_bos = sentencepiece or pre_tokenization(_pre(metadata)).add_bos
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos))
    add_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
    plain = Vocabulary(sentencepiece, tokens, types)
    added = plain.control | plain.user_defined
    return Vocabulary(
        sentencepiece=sentencepiece,
        tokens=tokens,
        types=types,
        bos_id=bos,
        eos_id=eos,
        unknown_id=ids["unknown"],
        prefix=(bos,) if add_bos and bos is not None else (),
        suffix=(eos,) if add_eos and eos is not None else (),
        strips_space=sentencepiece and _adds_space(metadata),
        matching=_phi3_matching(added) if _is_phi3(metadata) else {},
        named={name: tokens[i] for role, name in _TEMPLATE_NAMES.items() if (i := ids[role]) is not None},
        stops=gather_stops(
            ((f"tokenizer.ggml.{role}_token_id", i) for role in _END_ROLES if (i := ids[role]) is not None),
            added,
            tokens,
        ),
    )


def _pre(metadata: Mapping[str, MetaValue]) -> str:
    return str(metadata.get("tokenizer.ggml.pre", "default"))


def _adds_space(metadata: Mapping[str, MetaValue]) -> bool:
    return bool(metadata.get("tokenizer.ggml.add_space_prefix", True))


def _is_phi3(metadata: Mapping[str, MetaValue]) -> bool:
    name = str(metadata.get("general.name", "")).lower()
    return "phi-3" in name or "phi3" in name


def _phi3_matching(added: Mapping[str, int]) -> dict[str, Matching]:
    """Phi-3's added tokens take the white space after them along; GGUF has no field for it, so the name tells."""
    return {text: Matching(rstrip=True) for text in added if text not in ("<unk>", "<s>", "<|endoftext|>")}


def _byte_level(vocabulary: Vocabulary, metadata: Mapping[str, MetaValue]) -> tokenizers.Tokenizer:
    """GPT-2's byte-level BPE. It is quick to build, so nothing is cached."""
    lines = metadata.get("tokenizer.ggml.merges")
    if not isinstance(lines, StringArray):
        raise _wrong("merges", "is not a list of strings", "the merges of the BPE vocabulary")
    merges = [tuple(line.split(" ")) for line in lines]
    if any(len(pair) != 2 for pair in merges):
        raise BadModelFile("tokenizer.ggml.merges has a line that is not two tokens; fetch the model file again")
    pre = pre_tokenization(_pre(metadata))
    backend = _backend(vocabulary, merges, ignore_merges=pre.whole_words)
    backend.pre_tokenizer = pre.build()
    return backend


def _sentencepiece(
    vocabulary: Vocabulary, metadata: Mapping[str, MetaValue], cache_folder: Path | None
) -> tokenizers.Tokenizer:
    scores = _numbers(metadata, "scores", len(vocabulary.tokens)).astype(np.float32)
    merges = as_text_pairs(cached_merges(vocabulary, scores, cache_folder), vocabulary.tokens)
    unknown = {} if vocabulary.unknown_id is None else {"unk_token": vocabulary.tokens[vocabulary.unknown_id]}
    backend = _backend(vocabulary, merges, byte_fallback=True, fuse_unk=True, **unknown)
    prepend = [normalizers.Prepend(SPACE)] if _adds_space(metadata) else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", SPACE)])
    return backend


def _backend(vocabulary: Vocabulary, merges: Sequence, **options: object) -> tokenizers.Tokenizer:
    """Control tokens are left out, so that no text can be merged into one."""
    ids = dict(zip(vocabulary.tokens, range(len(vocabulary.tokens)), strict=True))
    for text, token_id in vocabulary.control.items():
        if token_id != vocabulary.unknown_id or not vocabulary.sentencepiece:
            del ids[text]
    try:
        return tokenizers.Tokenizer(models.BPE(ids, merges, **options))
    except Exception as error:  # the library raises nothing narrower
        raise BadModelFile(f"tokenizer.ggml.merges do not fit the vocabulary ({error}); fetch the file again") from None


def _numbers(metadata: Mapping[str, MetaValue], name: str, count: int) -> np.ndarray:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, np.ndarray) or len(values) != count:
        found = f"has {len(values)} entries" if isinstance(values, np.ndarray) else "is not a list of numbers"
        raise _wrong(name, found, f"one number for each of the {count} tokens")
    return values


def _token_id(metadata: Mapping[str, MetaValue], role: str, count: int) -> int | None:
    token_id = metadata.get(f"tokenizer.ggml.{role}_token_id")
    if token_id is None:
        return None
    if not isinstance(token_id, int) or not 0 <= token_id < count:
        raise _wrong(f"{role}_token_id", f"is {token_id}", f"an id below {count}")
    return token_id


def _wrong(name: str, found: str, expected: str) -> BadModelFile:
    return BadModelFile(f"tokenizer.ggml.{name} {found}, expected {expected}; fetch the model file again")
