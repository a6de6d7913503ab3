"""The tokenizer of a model folder: tokenizer.json and what the files beside it add.

tokenizer.json is the format of the `tokenizers` library (https://huggingface.co/docs/tokenizers), which builds
normaliser, pre-tokeniser and model from it as they are. tokenizer_config.json names the tokens with a role and may
say whether a text begins with one; special_tokens_map.json is an older place for the names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from inference.added_tokens import PLAIN, Matching
from inference.errors import BadModelFile, ModelNotFound, UnsupportedModel
from inference.formats.json_files import parse_json, read_file, read_json
from inference.formats.tensors import FETCH_AGAIN
from inference.stop_tokens import gather_stops
from inference.vocabulary import SPACE, TokenType, Vocabulary, is_byte_token

MODELS = ("BPE", "Unigram")
MAX_IDS = 2**22  # far above any vocabulary: an id beyond is a mistake, and would make a long list


def read_tokenizer_folder(folder: Path) -> tuple[Vocabulary, tokenizers.Tokenizer]:
    """The vocabulary and the library's tokenizer.

    Raises ModelNotFound where there is no tokenizer.json, UnsupportedModel for models and decoders that are not known
    here, BadModelFile where a file is damaged.
    """
    path = folder / "tokenizer.json"
    contents = read_file(path)
    if contents is None:
        raise _no_tokenizer(folder)
    document = parse_json(path, contents)
    _check_ids(path, document)
    backend = _build(path, contents)
    roles = _read_roles(folder)
    model = document["model"]
    if (kind := json.loads(backend.model.__getstate__())["type"]) not in MODELS:
        raise UnsupportedModel(f"{path}: the model is {kind}, expected {' or '.join(MODELS)}; use another model")
    rule = _decoding(path, document)
    tokens, types, matching = _read_tokens(path, backend, roles, rule)
    ids = {text: i for i, text in enumerate(tokens) if types[i] != TokenType.UNUSED}
    unknown = tokens[model["unk_id"]] if model.get("unk_id") is not None else model.get("unk_token")
    unknown_id = ids.get(unknown) if unknown is not None else None
    if unknown_id is not None and types[unknown_id] == TokenType.CONTROL:
        types[unknown_id] = TokenType.UNKNOWN
    config, generation = read_json(folder / "config.json"), read_json(folder / "generation_config.json")
    config = config | config.get("text_config", {}) if isinstance(config.get("text_config", {}), dict) else config
    padding = _padding(folder / "config.json", config, len(tokens))
    bos, eos = (ids.get(roles.named.get(name, "")) for name in ("bos_token", "eos_token"))
    prefix, suffix = _around(document.get("post_processor"))
    bare = Vocabulary(rule.sentencepiece, tokens, types)
    vocabulary = Vocabulary(
        sentencepiece=rule.sentencepiece,
        tokens=[*tokens, *[""] * padding],
        types=np.concatenate([types, np.full(padding, TokenType.UNUSED, np.int32)]),
        bos_id=bos,
        eos_id=eos,
        unknown_id=unknown_id,
        prefix=prefix if roles.add_bos is None else (bos,) if roles.add_bos and bos is not None else (),
        suffix=suffix if roles.add_eos is None else (eos,) if roles.add_eos and eos is not None else (),
        strips_space=rule.strips_space,
        matching=matching,
        named=roles.named,
        stops=gather_stops(
            [
                *(("config.json", i) for i in _ids_of(config.get("eos_token_id"))),
                *(("generation_config.json", i) for i in _ids_of(generation.get("eos_token_id"))),
                *(("the tokenizer's eos_token", i) for i in [eos] if i is not None),
            ],
            bare.control | bare.user_defined,
            tokens,
        ),
    )
    control = {text for text, i in vocabulary.control.items() if i != unknown_id}
    if _hide(model, control):
        backend = _build(path, json.dumps(document | {"added_tokens": []}).encode())
    return vocabulary, backend


def _no_tokenizer(folder: Path) -> ModelNotFound:
    others = [name for name in ("tokenizer.model", "vocab.json", "tekken.json") if (folder / name).exists()]
    found = f" (only {others[0]}, which is another format)" if others else ""
    return ModelNotFound(
        f"{folder}: has no tokenizer.json{found}; fetch tokenizer.json from the model's page, or use a GGUF file of it"
    )


def _check_ids(path: Path, document: Mapping[str, Any]) -> None:
    """Refuses ids so high that the library would run out of memory over them."""
    model = document.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids = vocab.values() if isinstance(vocab, dict) else ()
    highest = max((i for i in ids if isinstance(i, int)), default=0)
    if highest >= MAX_IDS:
        raise BadModelFile(f"{path}: the highest token id is {highest}, expected one below {MAX_IDS}; {FETCH_AGAIN}")


def _build(path: Path, contents: bytes) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_buffer(contents)
    except Exception as error:  # the library raises nothing narrower
        reason = " ".join(str(error).split())
        raise BadModelFile(f"{path}: does not describe a tokenizer ({reason}); {FETCH_AGAIN}") from None


@dataclass(frozen=True)
class _Roles:
    """What the files beside tokenizer.json say: token texts by role, all special texts, further added tokens by id."""

    named: Mapping[str, str]
    special: frozenset[str]
    further: Mapping[int, tokenizers.AddedToken]
    add_bos: bool | None
    add_eos: bool | None


def _read_roles(folder: Path) -> _Roles:
    path = folder / "tokenizer_config.json"
    config, older = read_json(path), read_json(folder / "special_tokens_map.json")
    named = {
        key: text
        for key, value in (older | {k: v for k, v in config.items() if v is not None}).items()
        if key.endswith("_token") and (text := _text_of(value))
    }
    lists = [source.get(key) for source in (config, older) for key in _SPECIAL_LISTS]
    special = {text for values in lists if isinstance(values, list) for v in values if (text := _text_of(v))}
    flags = [value if isinstance(value := config.get(f"add_{r}_token"), bool) else None for r in ("bos", "eos")]
    return _Roles(
        named, frozenset(special) | frozenset(named.values()), dict(_further(path, config)), flags[0], flags[1]
    )


_SPECIAL_LISTS = ("additional_special_tokens", "extra_special_tokens")


def _text_of(value: object) -> str | None:
    """The text of a token that is written as a string or as an object."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


def _further(path: Path, config: Mapping[str, Any]) -> Iterator[tuple[int, tokenizers.AddedToken]]:
    """The added tokens that tokenizer_config.json lists by id."""
    listed = config.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict):
        raise BadModelFile(f"{path}: added_tokens_decoder is not an object; {FETCH_AGAIN}")
    for key, value in listed.items():
        if not (isinstance(key, str) and key.isdecimal() and isinstance(value, dict) and (text := _text_of(value))):
            raise BadModelFile(f"{path}: added_tokens_decoder has the entry {key!r}, expected an id and a token")
        flags = {name: bool(value.get(name)) for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}
        yield int(key), tokenizers.AddedToken(text, **flags)


@dataclass(frozen=True)
class _Decoding:
    """How the file's decoder makes text of tokens."""

    sentencepiece: bool
    byte_fallback: bool
    strips_space: bool


def _decoding(path: Path, document: Mapping[str, Any]) -> _Decoding:
    steps = {step["type"]: step for step in _flatten(document.get("decoder"), "decoders")}
    replace, metaspace, strip = (steps.get(name) for name in ("Replace", "Metaspace", "Strip"))
    sentencepiece = metaspace is not None or (replace is not None and replace["pattern"] == {"String": SPACE})
    if not sentencepiece and "ByteLevel" not in steps:
        raise UnsupportedModel(
            f"{path}: the decoder is {' + '.join(steps) or 'missing'}, expected ByteLevel, Metaspace or one that "
            f"replaces {SPACE}; use another model"
        )
    prepends = metaspace is not None and metaspace.get("prepend_scheme", "always") != "never"
    strips = strip is not None and strip["content"] == " " and strip["start"] > 0
    return _Decoding(sentencepiece, "ByteFallback" in steps, prepends or strips)


def _flatten(step: Mapping[str, Any] | None, key: str) -> Iterator[Mapping[str, Any]]:
    """The steps of a decoder or post-processor, which may be sequences of others."""
    if step is not None and step["type"] == "Sequence":
        for each in step[key]:
            yield from _flatten(each, key)
    elif step is not None:
        yield step


def _read_tokens(
    path: Path, backend: tokenizers.Tokenizer, roles: _Roles, rule: _Decoding
) -> tuple[list[str], np.ndarray, dict[str, Matching]]:
    """Texts and types by id, and how the added tokens are found. Ids between those in use have no text."""
    ids = backend.get_vocab(with_added_tokens=False)
    added = {**roles.further, **backend.get_added_tokens_decoder()}
    for text in roles.special - {token.content for token in added.values()}:
        if text in ids:
            added[ids[text]] = tokenizers.AddedToken(text, special=True)
    highest = max([*ids.values(), *added], default=-1)
    if not 0 <= highest < MAX_IDS:
        raise BadModelFile(f"{path}: has {highest + 1} token ids, expected 1 to {MAX_IDS}; {FETCH_AGAIN}")
    tokens = [""] * (highest + 1)
    types = np.full(highest + 1, TokenType.UNUSED, np.int32)
    for text, token_id in ids.items():
        tokens[token_id] = text
        types[token_id] = TokenType.BYTE if rule.byte_fallback and is_byte_token(text) else TokenType.NORMAL
    matching = {}
    for token_id, token in added.items():
        tokens[token_id] = token.content
        special = token.special or token.content in roles.special
        types[token_id] = TokenType.CONTROL if special else TokenType.USER_DEFINED
        how = Matching(token.lstrip, token.rstrip, token.single_word, token.normalized and not special)
        if how != PLAIN:
            matching[token.content] = how
    return tokens, types, matching


def _padding(path: Path, config: Mapping[str, Any], count: int) -> int:
    """How many ids the model has beyond the tokenizer's."""
    size = config.get("vocab_size", count)
    if not isinstance(size, int) or size >= MAX_IDS:
        raise BadModelFile(f"{path}: vocab_size is {size!r}, expected a number below {MAX_IDS}; {FETCH_AGAIN}")
    return max(size - count, 0)


def _around(post_processor: Mapping[str, Any] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the post-processor puts before and after a single text."""
    before: list[int] = []
    after: list[int] = []
    for step in _flatten(post_processor, "processors"):
        side = before
        for part in step["single"] if step["type"] == "TemplateProcessing" else ():
            if "Sequence" in part:
                side = after
            else:
                side += step["special_tokens"][part["SpecialToken"]["id"]]["ids"]
    return tuple(before), tuple(after)


def _ids_of(value: object) -> list[int]:
    """The ids in a field that holds one, several or none."""
    values = value if isinstance(value, list) else [value]
    return [i for i in values if isinstance(i, int) and not isinstance(i, bool)]


def _hide(model: dict[str, Any], names: set[str]) -> bool:
    """Change the model so that no text can be merged into one of `names`; False where none could be.

    In a Unigram vocabulary a token's place is its id, so it gets a text with a space, which SentencePiece models
    never see.
    """
    vocab = model["vocab"]
    if isinstance(vocab, list):
        found = [i for i, (text, _) in enumerate(vocab) if text in names and i != model.get("unk_id")]
        for i in found:
            vocab[i] = [f" {vocab[i][0]}", vocab[i][1]]
        return bool(found)
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    present = names & vocab.keys()
    if not any(len(name) == 1 for name in present) and not model.get("ignore_merges"):
        present &= {left + right for left, right in pairs}
    for name in present:
        del vocab[name]
    model["merges"] = [pair for pair in pairs if present.isdisjoint((*pair, "".join(pair)))]
    return bool(present)
