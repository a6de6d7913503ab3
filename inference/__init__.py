"""Glasschat's inference engine: language models on WebGPU or NumPy, without any interface.

    from inference import Engine, Sampling
    engine = Engine.open("model.gguf")
    for event in engine.generate([{"role": "user", "content": "Hello"}], Sampling(temperature=0)):
        print(event)
"""

from inference.engine import Engine
from inference.sampling import Sampling

__all__ = ["Engine", "Sampling"]
