"""What to sample: the settings of one request.

The stages run in this fixed order: repetition, frequency and presence penalty, logit bias,
temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sampling:
    """Sampling settings. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 switch a stage off.

    `seed` None draws a fresh seed for each reply. `stop` holds strings that end the reply and are not part of it.
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
