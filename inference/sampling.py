"""Sampling as data: the settings of one request, and a token chosen by them. `inference.sampler` does the work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

from inference.events import StepSpans

MAX_CANDIDATES = 64
"""Tokens that the sampler on the GPU sorts and chooses from; a larger top_k, or none, samples on the host."""

NUM_ALTERNATIVES = 8
"""Most likely tokens reported with each token."""

LOGIT_LIMIT = 1e30
"""Logits are kept within plus and minus this, NaN at the lower end, so that no step of sampling leaves f32."""

MIN_TEMPERATURE = 1e-6
"""A lower temperature above 0 acts as this one."""


@dataclass(frozen=True)
class Sampling:
    """Sampling settings. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 switch a stage off.

    `repetition` divides positive logits and multiplies negative ones of tokens seen before
    (arXiv:1909.05858); `frequency` times the count and `presence` once are subtracted. Seen tokens are
    those of the whole context. `seed` None draws a fresh seed for each reply. `stop` holds strings that
    end the reply and are not part of it.
    """

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks = (
            (self.temperature >= 0, "temperature", self.temperature, "0 or more"),
            (self.top_k >= 0, "top_k", self.top_k, "0 or more"),
            (0 < self.top_p <= 1, "top_p", self.top_p, "above 0, up to 1"),
            (0 <= self.min_p <= 1, "min_p", self.min_p, "between 0 and 1"),
            (self.repetition > 0, "repetition", self.repetition, "above 0"),
            (isfinite(self.temperature), "temperature", self.temperature, "a finite number"),
            (isfinite(self.repetition), "repetition", self.repetition, "a finite number"),
            (isfinite(self.frequency), "frequency", self.frequency, "a finite number"),
            (isfinite(self.presence), "presence", self.presence, "a finite number"),
        )
        for good, name, value, expected in checks:
            if not good:
                raise ValueError(f"sampling: {name} is {value}, expected {expected}")

    @property
    def has_penalties(self) -> bool:
        return self.repetition != 1.0 or self.frequency != 0.0 or self.presence != 0.0

    @property
    def host_reason(self) -> str | None:
        """Why the GPU's sampler cannot serve this request, or None where it can."""
        if self.logit_bias:
            return "logit bias is applied on the host"
        if self.temperature > 0 and not 1 <= self.top_k <= MAX_CANDIDATES:
            return f"top_k {self.top_k or 'off'} needs more than the {MAX_CANDIDATES} candidates that the GPU sorts"
        return None


@dataclass(frozen=True)
class Sampled:
    """A chosen token with its log-probability and the most likely tokens, most likely first.

    `spans` tells what its step took, where it was part of a stream.
    """

    id: int
    logprob: float
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]
    spans: StepSpans = field(default_factory=StepSpans, compare=False)
