"""The layouts of a KV cache by name, with a line about each. Imports nothing, so that a command line can list them."""

from __future__ import annotations

from collections.abc import Mapping

SUMMARIES: Mapping[str, str] = {
    "auto": "a ring for layers with a sliding window, pages for the others",
    "contiguous": "one array a layer for the keys and one for the values, grown in steps",
    "paged": "pages of 32 tokens from a pool, taken as needed; forks share them",
    "ring": "layers with a sliding window keep only what they can still see, the others are paged",
    "tiered": "the last tokens in a ring, older ones in pages that forks share",
    "tiered-int8": "as tiered, with older tokens in 8-bit integers and a scale",
    "tiered-int4": "as tiered, with older tokens in 4-bit integers and a scale",
    "bdpa": "the first keys and values of each token id whole, later ones as 8-bit differences from them",
}
"""What may be asked for: "auto", which chooses by layer, and each layout."""

LAYOUTS = tuple(name for name in SUMMARIES if name != "auto")
"""The layouts by name."""
