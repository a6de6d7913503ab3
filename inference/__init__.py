"""Glasschat's inference engine: language models on WebGPU or NumPy, without any interface.

A reply, as a stream of events:

    from inference import Engine, Sampling
    engine = Engine.open("model.gguf")
    for event in engine.generate([{"role": "user", "content": "Hello"}], Sampling(temperature=0)):
        print(event)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inference.engine import Engine
    from inference.sampling import Sampling

__all__ = ["Engine", "Sampling"]


def __getattr__(name: str) -> Any:
    """Import on first use: whoever only needs the catalogue or an error class pays for neither wgpu nor NumPy."""
    homes = {"Engine": "inference.engine", "Sampling": "inference.sampling"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(homes[name]), name)
