"""The panels' names, as settings and keys use them, and what each is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PanelName:
    """`key` chooses the panel in the menu; `size` is what it has at first: rows, or columns beside the transcript."""

    key: str
    title: str
    help: str
    size: int


PANELS: Mapping[str, PanelName] = {
    "dtypes": PanelName("d", "Dtypes", "every operation, its dtypes and its kernel", 18),
    "kernels": PanelName("k", "Kernels", "which kernel runs and why, and what each takes", 16),
    "memory": PanelName("m", "Memory", "where the bytes are", 40),
    "kv": PanelName("c", "KV map", "what the KV cache holds where", 9),
    "timing": PanelName("s", "Timing", "where the time of each token went", 44),
    "tokens": PanelName("t", "Tokens", "how likely each was, and what else there was", 14),
    "prompt": PanelName("p", "Prompt", "what the model was given, token by token", 12),
    "lora": PanelName("l", "LoRA", "the adapters and their strengths", 9),
}
