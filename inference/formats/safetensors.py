"""Reads safetensors models, of one file or sharded with an index, over memory maps.

Format: https://github.com/huggingface/safetensors#format. The file is: the length of the header (8 bytes,
little-endian), the header (JSON: each tensor's dtype, shape and offsets), tensor data. The data has neither holes nor
overlaps. A sharded model has an index (JSON) that tells which file holds which tensor.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from inference.errors import BadModelFile, ModelNotFound
from inference.formats.mxfp4_pairs import BLOCKS, SCALES, ggml_blocks, join_pairs
from inference.formats.tensors import FETCH_AGAIN, TensorInfo, map_file

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_HEADER = 100_000_000
"""Bytes; the format's own limit. It holds for an index here, too."""
PICKLES = frozenset({".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth"})

# Plain names only, so that no index can reach a file outside its folder.
_SHARD_NAME = re.compile(r"\w[\w.-]*\.safetensors", re.ASCII)
_SHARD_OF_MANY = re.compile(r"model-\d{5}-of-\d{5}\.safetensors", re.ASCII)
# As many as NumPy and PyTorch allow.
_MAX_DIMENSIONS = 64
_BITS: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ", "F8_E8M0", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True)
class SafetensorsFile:
    """An open safetensors model; `path` is its file, or the index of a sharded one, so that its parent is the folder.

    A tensor's `type` is the format's own name, which for F32, F16 and BF16 is GGML's too, or MXFP4, of which the
    format knows nothing: see mxfp4_pairs. The maps live as long as this object or any view taken from it.
    """

    path: Path
    tensors: Mapping[str, TensorInfo]
    _views: Mapping[str, npt.NDArray[np.uint8]] = field(repr=False, compare=False)

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, uint8 (nbytes,), as a read-only view of the map, of MXFP4 made anew as GGML has them.

        Raises BadModelFile where there is none of that name.
        """
        view = self._views.get(name)
        if view is None and name in self.tensors:
            return ggml_blocks(self._views[name + BLOCKS], self._views[name + SCALES])
        if view is None:
            raise BadModelFile(f"{self.path}: has no tensor named {name}, which its model family needs; {FETCH_AGAIN}")
        return view


def open_safetensors(path: Path) -> SafetensorsFile:
    """Maps a safetensors file, or the model in a folder: `model.safetensors`, or else the shards of its index.

    A shard opens its whole model. Raises ModelNotFound where there is nothing to open, BadModelFile where a file is
    damaged, where index and shards do not agree, and for pickles, which are never read.
    """
    file = _open(path)
    return replace(file, tensors=join_pairs(file.tensors))


def _open(path: Path) -> SafetensorsFile:
    if _is_pickle(path.name):
        raise _refused_pickle(f"{path}: is a pickle")
    if not os.path.isdir(path):
        if not _SHARD_OF_MANY.fullmatch(path.name) or not os.path.isfile(path):
            return _open_file(path)
        if not os.path.isfile(path.with_name(INDEX)):
            raise BadModelFile(f"{path}: is a shard, and its {INDEX} is not in the folder; fetch the whole model")
        return _open_sharded(path.with_name(INDEX))
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise ModelNotFound(f"{path}: cannot be read ({error.strerror or error}); check the path") from None
    if WHOLE in names:
        return _open_file(path / WHOLE)
    if INDEX in names:
        return _open_sharded(path / INDEX)
    if pickles := [name for name in names if _is_pickle(name)]:
        raise _refused_pickle(f"{path}: has its weights as a pickle ({pickles[0]})")
    raise ModelNotFound(f"{path}: has neither {WHOLE} nor {INDEX}; check the path or fetch the model again")


def _is_pickle(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in PICKLES


def _refused_pickle(what: str) -> BadModelFile:
    return BadModelFile(
        f"{what}, which can run any code when it is read, so it is not; get this model as safetensors or GGUF"
    )


def _open_sharded(path: Path) -> SafetensorsFile:
    """Opens all shards that the index at `path` names."""
    buffer = map_file(path, "JSON", 2)
    weight_map = _json_object(path, "the index", buffer, 0, len(buffer)).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadModelFile(
            f"{path}: weight_map is {reprlib.repr(weight_map)}, expected an object that maps tensors to files; "
            f"{FETCH_AGAIN}"
        )
    shards: dict[str, SafetensorsFile] = {}
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not _SHARD_NAME.fullmatch(name):
            raise BadModelFile(
                f"{path}: puts tensor {tensor!r} into {reprlib.repr(name)}, expected the name of a .safetensors file "
                f"in the same folder; {FETCH_AGAIN}"
            )
        if name not in shards:
            if not os.path.isfile(path.with_name(name)):
                raise BadModelFile(
                    f"{path}: puts tensor {tensor!r} into {name}, which is not in the folder; fetch {name}"
                )
            shards[name] = _open_file(path.with_name(name))
        if tensor not in shards[name].tensors:
            raise BadModelFile(
                f"{path.with_name(name)}: does not have tensor {tensor!r}, which {INDEX} puts there; "
                "fetch both files again"
            )
    return _join_shards(path, shards)


def _join_shards(path: Path, shards: Mapping[str, SafetensorsFile]) -> SafetensorsFile:
    """One file with the tensors of all shards, also those that the index leaves out."""
    tensors: dict[str, TensorInfo] = {}
    views: dict[str, npt.NDArray[np.uint8]] = {}
    for shard in shards.values():
        for name in shard.tensors:
            if name in tensors:
                other = next(other for other, file in shards.items() if name in file.tensors)
                raise BadModelFile(f"{shard.path}: has the tensor {name!r}, which is in {other} too; {FETCH_AGAIN}")
        tensors.update(shard.tensors)
        views.update(shard._views)
    return SafetensorsFile(path, tensors, views)


def _open_file(path: Path) -> SafetensorsFile:
    buffer = map_file(path, "safetensors", 8)
    start = 8 + int.from_bytes(buffer[:8], "little")
    header = _json_object(path, "the header", buffer, 8, start)
    header.pop("__metadata__", None)
    tensors = {name: _read_tensor(path, name, entry, start, len(buffer)) for name, entry in header.items()}
    _check_layout(path, tensors, start, len(buffer))
    whole = np.frombuffer(buffer, dtype=np.uint8)
    views = {name: whole[info.offset : info.offset + info.nbytes] for name, info in tensors.items()}
    return SafetensorsFile(path, tensors, views)


def _json_object(path: Path, what: str, buffer: mmap.mmap, start: int, stop: int) -> dict[str, Any]:
    """Reads the JSON object in bytes start .. stop."""
    if stop > len(buffer) or stop - start > MAX_HEADER:
        raise BadModelFile(
            f"{path}: {what} takes {stop - start} bytes, expected no more than the {len(buffer) - start} that the "
            f"file has and {MAX_HEADER}: it is truncated or of another kind; {FETCH_AGAIN}"
        )

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise BadModelFile(f"{path}: {what} has the key {key!r} twice; {FETCH_AGAIN}")
            found[key] = value
        return found

    try:
        value = json.loads(buffer[start:stop].decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise BadModelFile(f"{path}: {what} is not JSON ({error}): the file is damaged; {FETCH_AGAIN}") from None
    if not isinstance(value, dict):
        raise BadModelFile(f"{path}: {what} is {reprlib.repr(value)}, expected a JSON object; {FETCH_AGAIN}")
    return value


def _read_tensor(path: Path, name: str, entry: Any, data_start: int, size: int) -> TensorInfo:
    """Checks one description. Offsets in the header count from the start of the data."""
    where = f"{path}: tensor {name!r}"
    if not isinstance(entry, dict):
        raise BadModelFile(f"{where} is described by {reprlib.repr(entry)}, expected an object; {FETCH_AGAIN}")
    if not name.isprintable():
        raise BadModelFile(f"{where} has a name that cannot be shown, expected printable text; {FETCH_AGAIN}")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise BadModelFile(
            f"{where} has dtype {reprlib.repr(dtype)}, expected one of {', '.join(_BITS)}; {FETCH_AGAIN}"
        )
    if not _whole_numbers(shape) or len(shape) > _MAX_DIMENSIONS:
        raise BadModelFile(
            f"{where} has shape {reprlib.repr(shape)}, expected up to {_MAX_DIMENSIONS} whole numbers from 0 up; "
            f"{FETCH_AGAIN}"
        )
    if not _whole_numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise BadModelFile(
            f"{where} has data_offsets {reprlib.repr(offsets)}, expected the byte where it starts and that where it "
            f"ends; {FETCH_AGAIN}"
        )
    start, stop = offsets
    bits = math.prod(shape) * _BITS[dtype]
    if bits != 8 * (stop - start):
        raise BadModelFile(
            f"{where} has {stop - start} bytes (data_offsets {offsets}), expected {-(-bits // 8)} for {dtype} of shape "
            f"{shape}; {FETCH_AGAIN}"
        )
    if data_start + stop > size:
        raise BadModelFile(
            f"{path}: is truncated: tensor {name!r} needs bytes up to {data_start + stop}, the file has {size}; "
            f"{FETCH_AGAIN}"
        )
    return TensorInfo(name, dtype, tuple(shape), data_start + start, stop - start)


def _whole_numbers(value: Any) -> TypeGuard[list[int]]:
    """A list of integers from 0 up to what 64 bits hold; true and false are not among them."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**64 for item in value)


def _check_layout(path: Path, tensors: Mapping[str, TensorInfo], start: int, size: int) -> None:
    """Raises BadModelFile unless the tensors cover the data, start .. size, each byte once."""
    before, end = "the header", start
    for info in sorted(tensors.values(), key=lambda info: (info.offset, info.nbytes)):
        if info.offset != end:
            found = "overlaps" if info.offset < end else "leaves a hole after"
            raise BadModelFile(
                f"{path}: tensor {info.name!r} {found} {before}: it starts at byte {info.offset}, expected {end}; "
                f"{FETCH_AGAIN}"
            )
        before, end = f"tensor {info.name!r}", info.offset + info.nbytes
    if end != size:
        raise BadModelFile(
            f"{path}: has {size - end} bytes after {before}, expected to end there, at byte {end}; {FETCH_AGAIN}"
        )
