"""The kernels of the NumPy executor: two ways to multiply by a matrix. All other operations have one form.

Dimension letters: T rows of a step, N rows and K columns of a weight matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.errors import KernelUnavailable
from inference.kernels.base import Decision, KernelPreference, Variant, select
from inference.plan.ops import Attention, ExpertMatmul, KvAppend, Lora, Matmul, Op

PRODUCTS: tuple[Variant[None], ...] = (
    Variant(
        "column_major",
        "f32 through BLAS; weights lie by columns, a few long ones by rows, read in one stream; threads of our own "
        "share long steps and large weights",
        lambda _: None,
    ),
    Variant(
        "reference",
        "f32 through BLAS and its threads; weights lie by rows: what all other kernels are compared with",
        lambda _: None,
    ),
)
"""How x (T, K) @ W.T is computed for W (N, K)."""

NAMES = tuple(variant.name for variant in PRODUCTS)


def choose_product(preferences: Sequence[KernelPreference]) -> Decision:
    """One of PRODUCTS, for all matrices of a model. Raises KernelUnavailable where another kernel is forced."""
    for preference in preferences:
        if preference.force and preference.name not in NAMES:
            raise KernelUnavailable(f"the CPU has no kernel called {preference.name!r}; there are {', '.join(NAMES)}")
    return select(PRODUCTS, None, preferences)


def kernel_notices(preferences: Sequence[KernelPreference]) -> list[str]:
    """What to tell about preferred kernels that the CPU does not have."""
    others = [preference.name for preference in preferences if preference.name not in NAMES]
    return [f"--kernels prefer:{name} has no effect on the CPU: there are {', '.join(NAMES)}" for name in others]


def explain_kernel(op: Op, product: Decision, layout: str) -> Decision:
    """The decision about an operation; `layout` is that of the KV cache which it works on, "" for none."""
    match op.attributes:
        case Matmul():
            return product
        case ExpertMatmul() | Lora():
            return Decision("reference", "f32 through BLAS; weights lie by rows")
        case KvAppend() | Attention():
            return Decision("reference", f"NumPy, f32; {layout} cache")
        case _:
            return Decision("reference", "NumPy, f32")
