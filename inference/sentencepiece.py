"""Merges for SentencePiece vocabularies, which hold scores instead.

SentencePiece BPE (Kudo and Richardson 2018, https://arxiv.org/abs/1808.06226) starts from characters and
joins, again and again, the two neighbours whose joined text is the token with the highest score. The same
is a list of merges in order of score. A token can be made of many pairs, but only one of them ever occurs:
joins inside a stretch of text that becomes one token do not depend on what surrounds it, so the pair is the
last join when the token's own text is encoded. Finding it takes seconds for 262,144 tokens,
therefore the result is kept on disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inference.vocabulary import TokenType, Vocabulary

Merges = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]
_CACHE_FORM = b"glasschat sentencepiece merges 1"
_DIGEST_BYTES = 32
_NONE = -float("inf")


def merges_from_scores(vocabulary: Vocabulary, token_scores: Scores) -> Merges:
    """The merges as ids of the two parts, int32 (merges, 2), best score first; `token_scores` is (tokens,)."""
    normal = np.flatnonzero(vocabulary.types == TokenType.NORMAL).tolist()
    ids = {vocabulary.tokens[i]: i for i in normal}
    # Single characters may be of another type, as a newline is in Gemma.
    ids |= {t: i for t, i in vocabulary.user_defined.items() if len(t) == 1}
    scores = token_scores.tolist()
    score_of = {vocabulary.tokens[i]: scores[i] for i in normal}
    found: list[tuple[float, int, int]] = []
    for text, score in score_of.items():
        pair = _last_join(text, score_of)
        if pair is not None and pair[0] in ids and pair[1] in ids:
            found.append((-score, ids[pair[0]], ids[pair[1]]))
    found.sort(key=lambda merge: merge[0])
    return np.array([merge[1:] for merge in found], np.int32).reshape(-1, 2)


def _last_join(text: str, score_of: dict[str, float]) -> tuple[str, str] | None:
    """The two parts that are joined last when `text` is encoded; None where it does not end as one token."""
    parts = list(text)
    scores = [score_of.get(left + right, _NONE) for left, right in pairwise(parts)]
    pair = None
    while scores:
        best = max(scores)
        if best == _NONE:
            return None
        i = scores.index(best)  # of equal scores, the leftmost
        pair = (parts[i], parts[i + 1])
        parts[i : i + 2] = [pair[0] + pair[1]]
        del scores[i]
        if i > 0:
            scores[i - 1] = score_of.get(parts[i - 1] + parts[i], _NONE)
        if i < len(scores):
            scores[i] = score_of.get(parts[i] + parts[i + 1], _NONE)
    return pair


def cached_merges(vocabulary: Vocabulary, scores: Scores, cache_folder: Path | None) -> Merges:
    """`merges_from_scores`, kept in `cache_folder` under a hash of the vocabulary. A damaged file is made again."""
    if cache_folder is None:
        return merges_from_scores(vocabulary, scores)
    path = cache_folder / f"{_fingerprint(vocabulary, scores)}.merges"
    merges = _read(path)
    if merges is None:
        merges = merges_from_scores(vocabulary, scores)
        _write(path, merges)
    return merges


def _fingerprint(vocabulary: Vocabulary, scores: Scores) -> str:
    digest = hashlib.blake2b(_CACHE_FORM, digest_size=16)
    digest.update("\0".join(vocabulary.tokens).encode())
    digest.update(vocabulary.types.tobytes())
    digest.update(scores.tobytes())
    return digest.hexdigest()


def _read(path: Path) -> Merges | None:
    """The merges in a cache file: their digest, then int32 pairs. None where it is missing or damaged."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    digest, body = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
    if digest != _digest(body):
        return None
    return np.frombuffer(body, "<i4").reshape(-1, 2)


def _write(path: Path, merges: Merges) -> None:
    """Writes beside the file and renames, so that no reader sees a part. A folder that refuses costs only time."""
    body = merges.astype("<i4").tobytes()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_digest(body) + body)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


def as_text_pairs(merges: Merges, tokens: Sequence[str]) -> list[tuple[str, str]]:
    """The merges as pairs of texts."""
    text = tokens.__getitem__
    return list(zip(map(text, merges[:, 0].tolist()), map(text, merges[:, 1].tolist()), strict=True))
