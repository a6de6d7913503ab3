"""GGUF models in several parts, as the `gguf` package writes them, and parts that do not belong together."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from inference.errors import BadModelFile, GlasschatError
from inference.formats.gguf import open_gguf

TENSORS = {f"blk.{i}.w": np.full((2, 32), i, np.float32) for i in range(5)}


def write_parts(folder: Path, tensors: dict[str, np.ndarray] = TENSORS, per_part: int = 2) -> list[Path]:
    writer = gguf.GGUFWriter(folder / "tiny.gguf", "llama", split_max_tensors=per_part)
    writer.add_string("text", "in the first part only")
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("*.gguf"))


def write_part(path: Path, fields: dict[str, int | list[int]], tensors: list[str]) -> None:
    """A part with any `split.` fields."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in fields.items():
        (writer.add_array if isinstance(value, list) else writer.add_int32)(f"split.{key}", value)
    for name in tensors:
        writer.add_tensor(name, TENSORS["blk.1.w"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_part_opens_all(opened: int, tmp_path: Path) -> None:
    parts = write_parts(tmp_path)
    assert [part.name for part in parts] == [f"tiny-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    file = open_gguf(parts[opened])
    assert file.path == parts[0] and file.metadata["text"] == "in the first part only"
    assert list(file.tensors) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert np.array_equal(file.data(name).view(np.float32), tensor.ravel())
        assert not file.data(name).flags.owndata and not file.data(name).flags.writeable
    with pytest.raises(BadModelFile, match="no tensor named other"):
        file.data("other")


def test_a_first_part_may_have_metadata_only(tmp_path: Path) -> None:
    first, second = (tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2))
    write_part(first, {"no": 0, "count": 2, "tensors.count": 1}, [])
    write_part(second, {"no": 1, "count": 2, "tensors.count": 1}, ["w"])
    assert list(open_gguf(second).tensors) == ["w"]


def test_parts_that_are_links_are_looked_for_beside_the_link(tmp_path: Path) -> None:
    """As in the hub's cache, where the files themselves are named by their checksums."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for i, part in enumerate(write_parts(tmp_path)):
        part.rename(blobs / str(i))
        (snapshot / part.name).symlink_to(blobs / str(i))
    assert list(open_gguf(snapshot / "tiny-00002-of-00003.gguf").tensors) == list(TENSORS)


@pytest.mark.parametrize("count", [0, 1])
def test_a_merged_model_is_one_file_whatever_its_name(count: int, tmp_path: Path) -> None:
    path = tmp_path / "merged.gguf"
    write_part(path, {"no": 0, "count": count}, ["w"])
    assert list(open_gguf(path).tensors) == ["w"]


SECOND = "m-00002-of-00002.gguf"
GOOD = {"no": 1, "count": 2, "tensors.count": 2}
BAD_SECOND_PARTS: dict[str, tuple[dict[str, int | list[int]], list[str], str]] = {
    "number": (GOOD | {"no": 0}, ["b"], f"{SECOND}: split.no is 0, expected 1 of part 2 of 2"),
    "count": (GOOD | {"count": 3}, ["b"], f"{SECOND}: split.count is 3, expected 2"),
    "total": (GOOD | {"tensors.count": 9}, ["b"], f"{SECOND}: split.tensors.count is 9, expected 2"),
    "no number": ({"count": 2, "tensors.count": 2}, ["b"], f"{SECOND}: split.no is None, expected 1"),
    "not split": ({}, ["b"], f"{SECOND}: split.no is None, expected 1"),
    "array": (GOOD | {"no": [1] * 500}, ["b"], f"{SECOND}: split.no is an array, expected 1"),
    "tensor twice": (GOOD, ["a"], f"{SECOND}: has the tensor 'a', which is in m-00001-of-00002.gguf too"),
    "tensor missing": (GOOD, [], "the 2 parts have 1 tensors together, expected 2"),
    "tensor too many": (GOOD, ["b", "c"], "the 2 parts have 3 tensors together, expected 2"),
}


@pytest.mark.parametrize("name", BAD_SECOND_PARTS)
def test_parts_that_do_not_belong_together(name: str, tmp_path: Path) -> None:
    fields, tensors, words = BAD_SECOND_PARTS[name]
    first = tmp_path / "m-00001-of-00002.gguf"
    write_part(first, GOOD | {"no": 0}, ["a"])
    write_part(tmp_path / SECOND, GOOD, ["b"])
    assert list(open_gguf(first).tensors) == ["a", "b"]
    write_part(tmp_path / SECOND, fields, tensors)
    with pytest.raises(BadModelFile) as caught:
        open_gguf(first)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def remove_second(parts: list[Path]) -> Path:
    parts[1].unlink()
    return parts[0]


def cut_second(parts: list[Path]) -> Path:
    parts[1].write_bytes(parts[1].read_bytes()[:-64])
    return parts[2]


def empty_second(parts: list[Path]) -> Path:
    parts[1].write_bytes(b"")
    return parts[0]


def rename_first(parts: list[Path]) -> Path:
    return parts[0].rename(parts[0].with_name("model.gguf"))


def rename_to_another_count(parts: list[Path]) -> Path:
    return parts[0].rename(parts[0].with_name("tiny-00001-of-00002.gguf"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (remove_second, "1 of the 3 parts of this model are missing: tiny-00002-of-00003.gguf; fetch all parts"),
        (cut_second, "tiny-00002-of-00003.gguf: is truncated"),
        (empty_second, "tiny-00002-of-00003.gguf: is 0 bytes long"),
        (rename_first, "model.gguf: is one of 3 parts, which are found by names such as NAME-00001-of-00003.gguf"),
        (rename_to_another_count, "tiny-00001-of-00002.gguf: is one of 3 parts"),
    ],
)
def test_damaged_splits(damage: Callable[[list[Path]], Path], words: str, tmp_path: Path) -> None:
    opened = damage(write_parts(tmp_path))
    with pytest.raises(BadModelFile) as caught:
        open_gguf(opened)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("count", [-1, 70000, 2**31 - 1])
def test_absurd_counts_make_nothing_large(count: int, tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00003.gguf"
    write_part(path, {"count": count}, ["w"])
    with pytest.raises(BadModelFile, match=f"is one of {count} parts"):
        open_gguf(path)


def test_flipped_bytes_give_only_our_errors(tmp_path: Path) -> None:
    parts = write_parts(tmp_path)
    whole = parts[1].read_bytes()
    for at in range(300):
        parts[1].write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            file = open_gguf(parts[0])
            assert all(len(file.data(name)) == info.nbytes for name, info in file.tensors.items())
        except GlasschatError as error:
            assert "\n" not in str(error)
