"""What the formats of model files share: named tensors whose bytes can be read, from files that are mapped."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from inference.errors import BadModelFile, ModelNotFound

FETCH_AGAIN = "fetch the file again"


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


def map_file(path: Path, format_name: str, min_bytes: int) -> mmap.mmap:
    """The file as a read-only map.

    Raises ModelNotFound where it cannot be opened, BadModelFile where it has less than the `min_bytes` with which
    every file of its format begins.
    """
    try:
        with path.open("rb") as file:
            size = len(file.read(min_bytes))
            if size < min_bytes:
                raise BadModelFile(
                    f"{path}: is {size} bytes long, shorter than the start of a {format_name} file ({min_bytes}); "
                    f"{FETCH_AGAIN}"
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelNotFound(f"{path}: cannot be read ({error.strerror or error}); check the path") from None
