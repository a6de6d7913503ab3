"""Which kernel file serves which kind of op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inference.errors import KernelUnavailable
from inference.kernels import append_in_matmul, attention, experts, matmul, sample, simple
from inference.kernels.base import Decision, KernelPreference
from inference.kernels.dispatch import Dispatch, KernelContext
from inference.plan.ops import Kind, Op


@dataclass(frozen=True)
class KernelFile:
    """How one kind of op is decided on and turned into dispatches."""

    choose: Callable[[Op, KernelContext], Decision]
    dispatches: Callable[[Op, Decision, KernelContext], tuple[Dispatch, ...]]


_SIMPLE = KernelFile(simple.choose, simple.dispatches)
_MATMUL = KernelFile(matmul.choose, matmul.dispatches)
_EXPERTS = KernelFile(experts.choose, experts.dispatches)

KERNELS: dict[Kind, KernelFile] = {
    "embed": _SIMPLE,
    "rmsnorm": _SIMPLE,
    "kv_append": _SIMPLE,
    "add": _SIMPLE,
    "activation_gate": _SIMPLE,
    "softcap": _SIMPLE,
    "last_row": _SIMPLE,
    "copy": _SIMPLE,
    "rope": _SIMPLE,
    "matmul": _MATMUL,
    "lm_head": _MATMUL,
    "lora": _MATMUL,
    "route": _EXPERTS,
    "expert_matmul": _EXPERTS,
    "attention": KernelFile(attention.choose, attention.dispatches),
    "sample": KernelFile(sample.choose, sample.dispatches),
}

VARIANT_NAMES = tuple(
    variant.name
    for variants in (
        matmul.VARIANTS, experts.VARIANTS,
        attention.DECODE_VARIANTS, attention.PREFILL_VARIANTS, (append_in_matmul.VARIANT,),
    )
    for variant in variants
)  # fmt: skip
"""The kernels that can be asked for by name."""


def check_names(preferences: Sequence[KernelPreference]) -> None:
    """Raises KernelUnavailable for a name that no kernel has."""
    for preference in preferences:
        if preference.name not in VARIANT_NAMES:
            raise KernelUnavailable(f"no kernel is called {preference.name!r}; there are {', '.join(VARIANT_NAMES)}")
