"""The reference form of sampling, in NumPy.

The stages run in this fixed order: repetition, frequency and presence penalty, logit bias,
temperature, top-k, top-p, min-p. The random number of a position depends only on the seed and the
position, so several tokens can be in flight and the same seed gives the same text on one device.
"""

from __future__ import annotations

import numpy as np

from inference.sampling import LOGIT_LIMIT, MIN_TEMPERATURE, NUM_ALTERNATIVES, Sampled, Sampling


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) of a position: pcg3d of (seed low, seed high, position).

    Jarzynski and Olano, Hash Functions for GPU Rendering, JCGT 9(3), 2020.
    """
    mask = 0xFFFFFFFF
    x, y, z = ((word * 1664525 + 1013904223) & mask for word in (seed & mask, seed >> 32 & mask, position & mask))
    for shift in (True, False):
        x = (x + y * z) & mask
        y = (y + z * x) & mask
        z = (z + x * y) & mask
        if shift:
            x, y, z = x ^ x >> 16, y ^ y >> 16, z ^ z >> 16
    return (x >> 8) / 2**24


def penalize(logits: np.ndarray, counts: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Logits (V,) after the penalties, where `counts` (V,) says how often each token stands in the context."""
    seen = counts > 0
    scaled = np.where(logits > 0, logits / sampling.repetition, logits * sampling.repetition)
    lowered = np.where(seen, scaled, logits) - sampling.frequency * counts - sampling.presence * seen
    return lowered.astype(np.float32)


def sample(logits: np.ndarray, sampling: Sampling, seed: int, position: int, counts: np.ndarray | None) -> Sampled:
    """Choose a token from logits (V,) float32; the token will stand at `position`.

    `counts` (V,) is needed where the request has penalties.
    """
    logits = _bound(logits)
    if sampling.has_penalties:
        assert counts is not None
        logits = _bound(penalize(logits, counts, sampling))
    if sampling.logit_bias:
        logits = logits.copy()
        for token, bias in sampling.logit_bias.items():
            logits[token] += bias
        logits = _bound(logits)
    order = _most_likely(logits, sampling)
    values = logits[order].astype(np.float64)
    total = np.exp(logits - logits[order[0]], dtype=np.float32).sum(dtype=np.float64)
    logprobs = (values - values[0]) - float(np.log(total))
    chosen = 0 if sampling.temperature == 0 else choose_candidate(values, sampling, uniform(seed, position))
    shown = order[:NUM_ALTERNATIVES]
    return Sampled(
        id=int(order[chosen]),
        logprob=float(logprobs[chosen]),
        top_ids=tuple(int(token) for token in shown),
        top_logprobs=tuple(float(logprob) for logprob in logprobs[: len(shown)]),
    )


def _bound(logits: np.ndarray) -> np.ndarray:
    """Logits within LOGIT_LIMIT; NaN becomes the lowest."""
    return np.fmin(np.fmax(logits, -LOGIT_LIMIT), LOGIT_LIMIT)


def _most_likely(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Token ids by falling logit, ties by rising id; as many as top-k lets through (at least the alternatives)."""
    wanted = NUM_ALTERNATIVES if sampling.temperature == 0 else sampling.top_k or len(logits)
    wanted = min(max(wanted, NUM_ALTERNATIVES), len(logits))
    if wanted < len(logits):
        threshold = np.partition(logits, len(logits) - wanted)[len(logits) - wanted]
        pool = np.flatnonzero(logits >= threshold)
    else:
        pool = np.arange(len(logits))
    return pool[np.lexsort((pool, -logits[pool]))][:wanted]


def choose_candidate(values: np.ndarray, sampling: Sampling, random: float) -> int:
    """Index into `values` (falling logits) by temperature above 0, top-k, top-p, min-p, then the draw at `random`."""
    kept = values[: sampling.top_k] if sampling.top_k else values
    weights = np.exp((kept - kept[0]) / max(sampling.temperature, MIN_TEMPERATURE))
    cumulative = np.cumsum(weights)
    # The smallest prefix whose mass reaches top_p (arXiv:1904.09751), then those near the best (arXiv:2407.01082).
    in_top_p = 1 + int(np.count_nonzero(cumulative < sampling.top_p * cumulative[-1]))
    in_min_p = int(np.count_nonzero(weights >= sampling.min_p))
    count = max(1, min(in_top_p, in_min_p, len(weights)))
    return min(int(np.count_nonzero(cumulative[:count] <= random * cumulative[count - 1])), count - 1)
