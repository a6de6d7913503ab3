"""Reads GGUF files (versions 2 and 3, little-endian) over a memory map.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The file is: header, metadata (key, type,
value), tensor descriptions, padding up to the alignment, tensor data. Nothing is copied: tensor data and
numeric arrays are NumPy views of the map, and string arrays (a vocabulary has up to some 260,000) are
walked once for their positions and decoded when asked for.

Every count and length is checked against what is left of the file before anything of that size is made.

A model may be split into parts, NAME-00001-of-00003.gguf and so on, as llama.cpp's gguf-split does. Each part is a
GGUF file; the first has the metadata, and all say how many parts and tensors there are.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt

from inference.errors import BadModelFile, UnsupportedModel
from inference.formats.ggml_types import TYPES_BY_NUMBER
from inference.formats.tensors import FETCH_AGAIN, TensorInfo, map_file

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
PART_NAME = re.compile(r"(?P<model>.+)-\d{5}-of-(?P<count>\d{5})\.gguf", re.ASCII | re.DOTALL)

# The numbers of the metadata value types.
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS: Mapping[int, np.dtype] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# The fewest bytes that one entry can take: what makes a count absurd.
_MIN_STRING, _MIN_METADATA, _MIN_TENSOR = 8, 13, 24


class StringArray(Sequence[str]):
    """An array of strings in the file; each is decoded when it is read.

    `positions` (int64) holds where each string's length field starts, and one more: where the array ends.
    """

    def __init__(self, path: Path, key: str, buffer: mmap.mmap, positions: npt.NDArray[np.int64]) -> None:
        self._path = path
        self._key = key
        self._buffer = buffer
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        start, end = int(self._positions[index]) + 8, int(self._positions[index + 1])
        return self._decode(index, self._buffer[start:end])

    def __iter__(self) -> Iterator[str]:
        first = int(self._positions[0])
        raw = self.raw_bytes()
        bounds = (self._positions - first).tolist()
        try:
            return iter([raw[start + 8 : end].decode() for start, end in pairwise(bounds)])
        except UnicodeDecodeError:
            # Slower, and says which.
            return (self._decode(i, raw[start + 8 : end]) for i, (start, end) in enumerate(pairwise(bounds)))

    def raw_bytes(self) -> bytes:
        """The whole array as it is in the file, length fields included: for hashing."""
        return self._buffer[int(self._positions[0]) : int(self._positions[-1])]

    def _decode(self, index: int, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise BadModelFile(
                f"{self._path}: string {index} of {self._key} is not UTF-8 ({error.reason}); {FETCH_AGAIN}"
            ) from None


MetaValue = int | float | bool | str | np.ndarray | StringArray


@dataclass(frozen=True)
class GGUFFile:
    """An open GGUF model, of one file or of several parts; `path` is the first. The maps live as long as this object
    or any view taken from it."""

    path: Path
    version: int
    metadata: Mapping[str, MetaValue]
    tensors: Mapping[str, TensorInfo]
    _views: Mapping[str, npt.NDArray[np.uint8]] = field(repr=False, compare=False)

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, uint8 (nbytes,), as a read-only view of the map; BadModelFile where there is none."""
        view = self._views.get(name)
        if view is None:
            raise BadModelFile(f"{self.path}: has no tensor named {name}, which its model family needs; {FETCH_AGAIN}")
        return view


def open_gguf(path: Path) -> GGUFFile:
    """Maps a GGUF model and reads its metadata and tensor descriptions; any part of a split model opens all of them.

    Raises ModelNotFound where the file cannot be opened, BadModelFile where it is damaged or where parts are missing
    or do not belong together, UnsupportedModel where it has a version or a tensor type that is not known here.
    """
    file = _open_file(path)
    count = file.metadata.get("split.count", 0)
    if type(count) is not int:
        raise BadModelFile(f"{path}: split.count is {_show(count)}, expected a whole number; {FETCH_AGAIN}")
    # What gguf-split has merged keeps a count of 0.
    return file if count in (0, 1) else _join_parts(_open_parts(file, count))


def _open_file(path: Path) -> GGUFFile:
    buffer = map_file(path, "GGUF", 24)
    if buffer[:4] != MAGIC:
        raise BadModelFile(f"{path}: starts with {buffer[:4]!r}, not {MAGIC!r}: this is not a GGUF file; {FETCH_AGAIN}")
    cursor = _Cursor(path, buffer)
    version = _read_version(cursor)
    tensor_count = cursor.count("tensors", _MIN_TENSOR)
    metadata_count = cursor.count("metadata entries", _MIN_METADATA)
    metadata = _read_metadata(cursor, metadata_count)
    tensors = _read_tensors(cursor, tensor_count, _alignment(path, metadata))
    whole = np.frombuffer(buffer, dtype=np.uint8)
    views = {name: whole[info.offset : info.offset + info.nbytes] for name, info in tensors.items()}
    return GGUFFile(path, version, metadata, tensors, views)


def _open_parts(file: GGUFFile, count: int) -> list[GGUFFile]:
    """All parts of the model that `file` is a part of, found by their names."""
    match = PART_NAME.fullmatch(file.path.name)
    if match is None or int(match["count"]) != count:
        raise BadModelFile(
            f"{file.path}: is one of {count} parts, which are found by names such as NAME-00001-of-{count:05d}.gguf; "
            "give all parts the names that they were published under"
        )
    paths = [file.path.with_name(f"{match['model']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise BadModelFile(
            f"{file.path}: {len(missing)} of the {count} parts of this model are missing: {', '.join(missing[:3])}"
            f"{' ...' if len(missing) > 3 else ''}; fetch all parts into one folder"
        )
    return [file if path == file.path else _open_file(path) for path in paths]


def _join_parts(parts: Sequence[GGUFFile]) -> GGUFFile:
    """One file with the metadata of the first part and the tensors of all."""
    first = parts[0]
    total = first.metadata.get("split.tensors.count")
    tensors: dict[str, TensorInfo] = {}
    views: dict[str, npt.NDArray[np.uint8]] = {}
    for number, part in enumerate(parts):
        expected = {"split.no": number, "split.count": len(parts), "split.tensors.count": total}
        for key, value in expected.items():
            found = part.metadata.get(key)
            if type(found) is not int or found != value:
                raise BadModelFile(
                    f"{part.path}: {key} is {_show(found)}, expected {_show(value)} of part {number + 1} of "
                    f"{len(parts)}: the parts do not belong together; fetch this part again"
                )
        for name in part.tensors:
            if name in tensors:
                other = next(other.path.name for other in parts if name in other.tensors)
                raise BadModelFile(f"{part.path}: has the tensor {name!r}, which is in {other} too; {FETCH_AGAIN}")
        tensors.update(part.tensors)
        views.update(part._views)
    if len(tensors) != total:
        raise BadModelFile(
            f"{first.path}: the {len(parts)} parts have {len(tensors)} tensors together, expected {total} "
            "(split.tensors.count): a part is damaged or of another model; fetch all parts again"
        )
    return GGUFFile(first.path, first.version, first.metadata, tensors, views)


def _show(value: object) -> str:
    """A metadata value on one line."""
    return repr(value) if value is None or isinstance(value, int | float | str) else "an array"


class _Cursor:
    """A position in the map, with reads that end in BadModelFile where the file does."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.position = len(MAGIC)
        self.reading = "the header"

    def take(self, size: int) -> int:
        """Steps over `size` bytes and returns where they start."""
        start = self.position
        if size > len(self.buffer) - start:
            raise BadModelFile(
                f"{self.path}: ends at byte {len(self.buffer)} in the middle of {self.reading}, which needs bytes "
                f"up to {start + size}: it is truncated or damaged; {FETCH_AGAIN}"
            )
        self.position = start + size
        return start

    def u32(self) -> int:
        return int(_U32.unpack_from(self.buffer, self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self.buffer, self.take(8))[0])

    def count(self, what: str, min_bytes: int) -> int:
        """Reads a count of things that take at least `min_bytes` each."""
        count = self.u64()
        left = len(self.buffer) - self.position
        if count * min_bytes > left:
            raise BadModelFile(
                f"{self.path}: {self.reading} announces {count} {what}, but the {left} bytes left hold at most "
                f"{left // min_bytes}: it is truncated or damaged; {FETCH_AGAIN}"
            )
        return count

    def string(self) -> str:
        size = self.u64()
        start = self.take(size)
        try:
            return self.buffer[start : start + size].decode()
        except UnicodeDecodeError as error:
            raise BadModelFile(
                f"{self.path}: a string in {self.reading} at byte {start} is not UTF-8 ({error.reason}); {FETCH_AGAIN}"
            ) from None


def _read_version(cursor: _Cursor) -> int:
    version = cursor.u32()
    if version in VERSIONS:
        return version
    if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
        raise UnsupportedModel(f"{cursor.path}: is a big-endian GGUF file; use the little-endian file of this model")
    raise UnsupportedModel(
        f"{cursor.path}: has GGUF version {version}, expected 2 or 3; use a newer file of this model"
    )


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, MetaValue]:
    metadata: dict[str, MetaValue] = {}
    for index in range(count):
        cursor.reading = f"metadata entry {index}"
        key = cursor.string()
        cursor.reading = f"metadata {key!r}"
        if key in metadata:
            raise BadModelFile(f"{cursor.path}: has the metadata key {key!r} twice; {FETCH_AGAIN}")
        metadata[key] = _read_value(cursor, key, cursor.u32())
    return metadata


def _read_value(cursor: _Cursor, key: str, kind: int) -> MetaValue:
    if kind == _STRING:
        return cursor.string()
    if kind == _ARRAY:
        element = cursor.u32()
        if element == _STRING:
            return _read_strings(cursor, key)
        if element in _NUMBERS:
            dtype = _NUMBERS[element]
            count = cursor.count("numbers", dtype.itemsize)
            numbers = np.frombuffer(cursor.buffer, dtype, count, cursor.take(count * dtype.itemsize))
            return numbers != 0 if element == _BOOL else numbers
        raise _unknown_kind(cursor, f"an array of type {element}")
    if kind in _NUMBERS:
        dtype = _NUMBERS[kind]
        number = np.frombuffer(cursor.buffer, dtype, 1, cursor.take(dtype.itemsize))[0].item()
        return bool(number) if kind == _BOOL else number
    raise _unknown_kind(cursor, f"type {kind}")


def _unknown_kind(cursor: _Cursor, found: str) -> BadModelFile:
    return BadModelFile(
        f"{cursor.path}: {cursor.reading} has {found}, expected a number, a string or an array of these (0 to 12); "
        f"the file is damaged: {FETCH_AGAIN}"
    )


def _read_strings(cursor: _Cursor, key: str) -> StringArray:
    count = cursor.count("strings", _MIN_STRING)
    buffer, position, unpack = cursor.buffer, cursor.position, _U64.unpack_from
    positions = [position]
    # This loop runs once a vocabulary entry, so bounds are checked once, after it: past the end `unpack` fails.
    try:
        for _ in range(count):
            position += 8 + unpack(buffer, position)[0]
            positions.append(position)
    except (struct.error, IndexError, OverflowError):
        position = max(position, len(buffer) + 1)
    cursor.take(position - cursor.position)
    return StringArray(cursor.path, key, buffer, np.array(positions, dtype=np.int64))


def _alignment(path: Path, metadata: Mapping[str, MetaValue]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
        raise BadModelFile(
            f"{path}: general.alignment is {_show(alignment)}, expected a power of two from 8 up; {FETCH_AGAIN}"
        )
    return alignment


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    relative: dict[str, TensorInfo] = {}
    for index in range(count):
        cursor.reading = f"the description of tensor {index}"
        info = _read_tensor(cursor, alignment)
        if info.name in relative:
            raise BadModelFile(f"{cursor.path}: describes the tensor {info.name!r} twice; {FETCH_AGAIN}")
        relative[info.name] = info
    data_start = -(-cursor.position // alignment) * alignment
    return {name: _place(cursor, info, data_start) for name, info in relative.items()}


def _read_tensor(cursor: _Cursor, alignment: int) -> TensorInfo:
    """Reads one description; the offset is still relative to the start of the tensor data."""
    name = cursor.string()
    cursor.reading = f"the description of tensor {name!r}"
    dimensions = cursor.u32()
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise BadModelFile(
            f"{cursor.path}: tensor {name!r} has {dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}; {FETCH_AGAIN}"
        )
    # The file gives the fastest-varying dimension first; NumPy's order is the other way round.
    shape = tuple(cursor.u64() for _ in range(dimensions))[::-1]
    number = cursor.u32()
    offset = cursor.u64()
    kind = TYPES_BY_NUMBER.get(number)
    if kind is None:
        raise UnsupportedModel(
            f"{cursor.path}: tensor {name!r} has type number {number}, which is not known here; "
            "use another quantisation of this model, such as Q8_0 or Q4_K_M"
        )
    if 0 in shape or shape[-1] % kind.block_size:
        raise BadModelFile(
            f"{cursor.path}: tensor {name!r} has shape {shape}, expected no zero and, for {kind.name}, rows of a "
            f"multiple of {kind.block_size} weights; {FETCH_AGAIN}"
        )
    if offset % alignment:
        raise BadModelFile(
            f"{cursor.path}: tensor {name!r} starts at offset {offset}, expected a multiple of the alignment "
            f"{alignment}; {FETCH_AGAIN}"
        )
    return TensorInfo(name, kind.name, shape, offset, math.prod(shape) // kind.block_size * kind.block_bytes)


def _place(cursor: _Cursor, info: TensorInfo, data_start: int) -> TensorInfo:
    """The same tensor with its offset counted from the start of the file, checked to lie inside the file."""
    start = data_start + info.offset
    if start + info.nbytes > len(cursor.buffer):
        raise BadModelFile(
            f"{cursor.path}: is truncated: tensor {info.name!r} needs bytes up to {start + info.nbytes}, the file has "
            f"{len(cursor.buffer)}; {FETCH_AGAIN}"
        )
    return TensorInfo(info.name, info.type, info.shape, start, info.nbytes)
