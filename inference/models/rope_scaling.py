"""Rotary embeddings stretched to longer contexts, each kind brought down to RopeConfig's factors.

Kinds and keys as Transformers and GGUF name them: linear (arXiv:2306.15595), YaRN (arXiv:2309.00071), LongRoPE
(arXiv:2402.13753) and the one of Llama 3.1.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from inference.models.config import RopeConfig
from inference.models.fields import Fields

KNOWN = "default, linear, llama3, yarn, longrope"


def hf_rope(fields: Fields, head_dim: int, layer_type: str = "") -> RopeConfig:
    """The rope of a config.json, from `rope_parameters` (nested by layer type in some) or the older keys.

    Raises UnsupportedModel for a kind of scaling that is not known, BadModelFile for values that cannot be right.
    LongRoPE gives the factors of short contexts; `hf_long_rope` those of long ones.
    """
    scaling = _scaling(fields, layer_type)
    partial = scaling.real("partial_rotary_factor", fields.real("partial_rotary_factor", 1.0))
    if partial > 1:
        raise scaling.wrong("partial_rotary_factor", partial, "a number up to 1")
    theta = scaling.positive("rope_theta", fields.positive("rope_theta", 10_000.0))
    if theta <= 1:
        raise scaling.wrong("rope_theta", theta, "a number above 1")
    rope = RopeConfig(theta, int(head_dim * partial), interleaved=False)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    match kind:
        case "default":
            return rope
        case "linear":
            return replace(rope, position_scale=1 / scaling.positive("factor"))
        case "llama3":
            return replace(rope, frequency_factors=_llama3(rope, scaling))
        case "yarn":
            original = scaling.integer("original_max_position_embeddings", fields.integer("max_position_embeddings"))
            factor = scaling.positive("factor")
            return replace(
                rope,
                frequency_factors=yarn_factors(
                    rope,
                    factor,
                    original,
                    scaling.positive("beta_fast", 32.0),
                    scaling.positive("beta_slow", 1.0),
                    scaling.flag("truncate", True),
                ),
                magnitude=scaling.positive("attention_factor", _yarn_magnitude(scaling, factor)),
            )
        case "longrope" | "su":
            return _longrope(fields, scaling, rope, "short_factor")
    raise scaling.unsupported("rope_type", kind, KNOWN)


def hf_long_rope(fields: Fields, head_dim: int) -> tuple[int, RopeConfig] | None:
    """The context up to which LongRoPE's short factors hold, and the rope beyond it; None for other kinds."""
    scaling = _scaling(fields)
    if not scaling.has("long_factor"):
        return None
    return _original_context(fields, scaling), _longrope(fields, scaling, hf_rope(fields, head_dim), "long_factor")


def gguf_rope(fields: Fields, rope: RopeConfig, yarn_truncate: bool = True) -> RopeConfig:
    """`rope` with the scaling that GGUF metadata declare. Raises UnsupportedModel or BadModelFile."""
    if rope.theta <= 1:
        raise fields.wrong("rope.freq_base", rope.theta, "a number above 1")
    kind = fields.text("rope.scaling.type", "linear")
    factor = fields.positive("rope.scaling.factor", fields.positive("rope.scale_linear", 1.0))
    magnitude = fields.positive("rope.scaling.attn_factor", 1.0)
    match kind:
        case "none" | "longrope":  # the factors of LongRoPE are tensors
            return replace(rope, magnitude=magnitude)
        case "linear":
            return replace(rope, position_scale=1 / factor, magnitude=magnitude)
        case "yarn":
            if (extrapolated := fields.real("rope.scaling.yarn_ext_factor", 1.0)) != 1:
                raise fields.unsupported("rope.scaling.yarn_ext_factor", extrapolated, "1")
            original = fields.integer("rope.scaling.original_context_length")
            factors = yarn_factors(
                rope,
                factor,
                original,
                fields.positive("rope.scaling.yarn_beta_fast", 32.0),
                fields.positive("rope.scaling.yarn_beta_slow", 1.0),
                yarn_truncate,
            )
            # Converters write the attention_factor of config.json, which replaces YaRN's own.
            yarn = fields.positive("rope.scaling.yarn_attn_factor", mscale(factor))
            return replace(rope, frequency_factors=factors, magnitude=magnitude * yarn)
    raise fields.unsupported("rope.scaling.type", kind, "none, linear, yarn, longrope")


def yarn_factors(
    rope: RopeConfig, factor: float, original_context: int, beta_fast: float, beta_slow: float, truncate: bool = True
) -> tuple[float, ...]:
    """What YaRN divides each inverse frequency by, section 3.2 of arXiv:2309.00071.

    Pairs that turn more than `beta_fast` times within the original context keep their frequency, those that turn less
    than `beta_slow` times are slowed by `factor`, with a ramp between; `truncate` rounds its ends outwards.
    """

    def pair_turning(times: float) -> float:
        turns = math.log(original_context / (2 * math.pi)) - math.log(times)
        return rope.rotary_dim * turns / (2 * math.log(rope.theta))

    low, high = pair_turning(beta_fast), pair_turning(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    ramp = np.clip((np.arange(rope.rotary_dim // 2) - low) / max(high - low, 0.001), 0, 1)
    return tuple((1 / (ramp / factor + (1 - ramp))).tolist())


def mscale(factor: float, weight: float = 1.0) -> float:
    """YaRN's attention factor, section 3.4 of arXiv:2309.00071."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _scaling(fields: Fields, layer_type: str = "") -> Fields:
    found = fields.group("rope_parameters" if fields.has("rope_parameters") else "rope_scaling")
    return found.group(layer_type) if layer_type and found.has(layer_type) else found


def _llama3(rope: RopeConfig, scaling: Fields) -> tuple[float, ...]:
    """Long waves are stretched by the factor, short ones kept, those between interpolated."""
    factor, original = scaling.positive("factor"), scaling.integer("original_max_position_embeddings")
    low, high = scaling.positive("low_freq_factor"), scaling.positive("high_freq_factor")
    if high <= low:
        raise scaling.wrong("high_freq_factor", high, f"more than low_freq_factor, {low}")
    half = rope.rotary_dim // 2
    wavelengths = 2 * math.pi * rope.theta ** (np.arange(half) / half)
    kept = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    return tuple((1 / ((1 - kept) / factor + kept)).tolist())


def _yarn_magnitude(scaling: Fields, factor: float) -> float:
    if scaling.has("mscale") and scaling.has("mscale_all_dim"):
        return mscale(factor, scaling.real("mscale")) / mscale(factor, scaling.real("mscale_all_dim"))
    return mscale(factor)


def _longrope(fields: Fields, scaling: Fields, rope: RopeConfig, key: str) -> RopeConfig:
    factors = scaling.items(key)
    if len(factors) != rope.rotary_dim // 2 or not all(isinstance(f, (int, float)) and f > 0 for f in factors):
        raise scaling.wrong(key, factors, f"{rope.rotary_dim // 2} numbers above 0")
    original = _original_context(fields, scaling)
    stretch = scaling.positive("factor", fields.integer("max_position_embeddings") / original)
    magnitude = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
    return replace(
        rope,
        frequency_factors=tuple(map(float, factors)),
        magnitude=scaling.positive("attention_factor", magnitude),
    )


def _original_context(fields: Fields, scaling: Fields) -> int:
    key = "original_max_position_embeddings"
    return scaling.integer(key, fields.integer(key, fields.integer("max_position_embeddings")), minimum=2)
