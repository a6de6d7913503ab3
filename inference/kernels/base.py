"""Choosing a kernel: an ordered list of variants, each with its requirements, and the recorded decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from inference.errors import KernelUnavailable

Request = TypeVar("Request")


@dataclass(frozen=True)
class Decision:
    """The variant that runs, why, each variant passed over with the requirement that failed, and the dtypes of sums."""

    variant: str
    reason: str
    rejected: tuple[tuple[str, str], ...] = ()
    accumulate: str = "f32"


@dataclass(frozen=True)
class Variant(Generic[Request]):
    """A way to run an op. `unmet` names the requirement that a request does not meet, or gives None.

    `unwise` says why the variant would run but is not worth it here; it is taken only where asked for by name.
    `accumulate` names the dtypes of its sums.
    """

    name: str
    reason: str
    unmet: Callable[[Request], str | None]
    unwise: Callable[[Request], str | None] = lambda _: None
    accumulate: str = "f32"


@dataclass(frozen=True)
class KernelPreference:
    """`--kernels prefer:NAME` falls back and says so; `force:NAME` raises where NAME cannot run."""

    name: str
    force: bool


def parse_preference(text: str) -> KernelPreference:
    """Read "prefer:NAME" or "force:NAME"; raises ValueError otherwise."""
    mode, separator, name = text.partition(":")
    if mode not in ("prefer", "force") or not separator or not name:
        raise ValueError(f"--kernels {text!r}: expected prefer:NAME or force:NAME")
    return KernelPreference(name, mode == "force")


def select(
    variants: Sequence[Variant[Request]], request: Request, preferences: Sequence[KernelPreference] = ()
) -> Decision:
    """The first variant whose requirements hold, or the preferred one.

    Raises KernelUnavailable where a forced variant's requirement fails, or where none can run.
    """
    failed = {variant.name: variant.unmet(request) for variant in variants}
    for preference in preferences:
        wanted = next((variant for variant in variants if variant.name == preference.name), None)
        if wanted is None:
            continue
        unmet = failed[wanted.name]
        if unmet is None:
            passed = tuple((name, why or f"{wanted.name} was asked for") for name, why in failed.items())
            others = tuple(pair for pair in passed if pair[0] != wanted.name)
            return Decision(wanted.name, "asked for by name", others, wanted.accumulate)
        if preference.force:
            raise KernelUnavailable(f"kernel {wanted.name} cannot run: {unmet}; use prefer:{wanted.name} to fall back")
    rejected: list[tuple[str, str]] = []
    for variant in variants:
        why = failed[variant.name] or variant.unwise(request)
        if why is None:
            return Decision(variant.name, variant.reason, tuple(rejected), variant.accumulate)
        rejected.append((variant.name, why))
    raise KernelUnavailable("no kernel can run: " + "; ".join(f"{name}: {why}" for name, why in rejected))
