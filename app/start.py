"""What the chat begins with."""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.sampling import Sampling


@dataclass(frozen=True)
class Start:
    """How the chat begins. `model` "" opens the menu; `kv` is the layout of the cache; `device` is "" while not chosen.

    `gpu_layers` go to WebGPU, None is as many as fit. `loras` are LoRA adapters by name, with their strengths. `editor`
    is the command of the person's own editor. `resume` goes on with the newest conversation. `notices` are shown first.
    `guide` shows how to begin.
    """

    model: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    system: str = ""
    kv: str = "auto"
    gpu_layers: int | None = None
    loras: tuple[tuple[str, float], ...] = ()
    device: str = ""
    editor: str = "vi"
    resume: bool = False
    notices: tuple[str, ...] = ()
    guide: bool = False
