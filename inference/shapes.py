"""Shapes of models that speed is measured on without their weights: the keys of their config.json that say them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_LLAMA_3: Mapping[str, Any] = {
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}

SHAPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "1b": {  # Llama 3.2 1B
            **_LLAMA_3,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "tie_word_embeddings": True,
        },
        "8b": {  # Llama 3.1 8B
            **_LLAMA_3,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "tie_word_embeddings": False,
        },
    }
)
