"""What the formats of model files share: named tensors whose bytes can be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class TensorInfo:
    """A tensor in a file.

    `type` is a name of `inference.formats.ggml_types` (of dense weights F32, F16 or BF16). `shape` is in NumPy order,
    (rows, columns) for a matrix; `offset` and `nbytes` are bytes of the file that holds it.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class TensorFile(Protocol):
    """An open model: a file, or a folder of files. `path` is what messages name."""

    @property
    def path(self) -> Path: ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, uint8 (nbytes,), read-only; BadModelFile where there is none of that name."""
        ...
