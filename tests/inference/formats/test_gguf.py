"""The GGUF reader against the `gguf` package's writer, and against damage of every kind."""

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.errors import BadModelFile, GlasschatError, ModelNotFound, UnsupportedModel
from inference.formats.gguf import GGUFFile, StringArray, open_gguf

WORDS = ["", "a", "Ġthe", "日本", "🙂"]
MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)
QUANTISED = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)


def write_small(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("u32", 7)
    writer.add_int64("i64", -3)
    writer.add_float32("f32", 0.5)
    writer.add_bool("yes", True)
    writer.add_string("text", "größe\n2")
    writer.add_array("words", WORDS)
    writer.add_array("scores", [0.5, -1.0, 2.0])
    writer.add_array("flags", [True, False])
    writer.add_tensor("matrix", MATRIX)
    writer.add_tensor("vector", MATRIX[0].astype(np.float16))
    quantised = gguf.quants.quantize(QUANTISED, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("quantised", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_small(path)
    return path


def test_metadata(small: Path) -> None:
    metadata = open_gguf(small).metadata
    assert metadata["general.architecture"] == "llama"
    assert (metadata["u32"], metadata["i64"], metadata["f32"], metadata["yes"]) == (7, -3, 0.5, True)
    assert type(metadata["yes"]) is bool and type(metadata["u32"]) is int and type(metadata["f32"]) is float
    assert metadata["text"] == "größe\n2"
    scores, flags = metadata["scores"], metadata["flags"]
    assert isinstance(scores, np.ndarray) and scores.tolist() == [0.5, -1.0, 2.0] and scores.dtype == np.float32
    assert isinstance(flags, np.ndarray) and flags.tolist() == [True, False] and flags.dtype == np.bool_


def test_string_array(small: Path) -> None:
    words = open_gguf(small).metadata["words"]
    assert isinstance(words, StringArray)
    assert list(words) == WORDS and len(words) == len(WORDS)
    assert [words[i] for i in range(5)] == WORDS and words[-1] == "🙂" and words[1:3] == WORDS[1:3]
    assert words.raw_bytes() == b"".join(struct.pack("<Q", len(w.encode())) + w.encode() for w in WORDS)
    with pytest.raises(IndexError):
        words[5]


def test_tensors_are_views_of_the_map(small: Path) -> None:
    file = open_gguf(small)
    assert {(t.name, t.type, t.shape) for t in file.tensors.values()} == {
        ("matrix", "F32", (3, 4)),
        ("vector", "F16", (4,)),
        ("quantised", "Q8_0", (2, 64)),
    }
    assert np.array_equal(file.data("matrix").view(np.float32).reshape(3, 4), MATRIX)
    assert np.array_equal(file.data("vector").view(np.float16), MATRIX[0])
    expected = gguf.quants.quantize(QUANTISED, gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(file.data("quantised"), expected.ravel())
    assert not file.data("matrix").flags.owndata and not file.data("matrix").flags.writeable
    with pytest.raises(BadModelFile, match="no tensor named missing"):
        file.data("missing")


def test_agrees_with_the_reference_reader(smollm2_path: Path) -> None:
    """Fields and positions of all tensors of a real file; its string arrays are left out for time."""
    ours = open_gguf(smollm2_path)
    reference = gguf.GGUFReader(smollm2_path)
    assert {n: (t.type, t.shape, t.offset, t.nbytes) for n, t in ours.tensors.items()} == {
        t.name: (t.tensor_type.name, tuple(t.shape.tolist())[::-1], t.data_offset, t.n_bytes) for t in reference.tensors
    }
    scalars = {k: v for k, v in ours.metadata.items() if not isinstance(v, StringArray | np.ndarray)}
    assert scalars == {k: reference.fields[k].contents() for k in scalars}
    assert len(ours.metadata) == sum(not k.startswith("GGUF.") for k in reference.fields)


def raw_string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def raw_file(entries: list[bytes], tensors: list[bytes], data: bytes = bytes(4096), version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def raw_tensor(name: bytes = b"w", shape: tuple[int, ...] = (32, 2), kind: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return raw_string(name) + dims + struct.pack("<IQ", kind, offset)


def raw_entry(key: bytes, kind: int, value: bytes) -> bytes:
    return raw_string(key) + struct.pack("<I", kind) + value


GOOD_ENTRY = raw_entry(b"k", 4, struct.pack("<I", 1))
HUGE = 2**63 + 5

DAMAGED: dict[str, tuple[bytes, type[GlasschatError], str]] = {
    "empty": (b"", BadModelFile, "is 0 bytes long"),
    "magic": (b"PK\x03\x04" + bytes(100), BadModelFile, "not a GGUF file"),
    "header only in part": (b"GGUF\x03\x00", BadModelFile, "shorter than the start of a GGUF file"),
    "version 1": (raw_file([], [], version=1), UnsupportedModel, "version 1, expected 2 or 3"),
    "big endian": (raw_file([], [], version=0x03000000), UnsupportedModel, "big-endian"),
    "tensor count": (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), BadModelFile, f"announces {HUGE} tensors"),
    "metadata count": (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), BadModelFile, f"announces {HUGE} metadata"),
    "key length": (raw_file([struct.pack("<Q", HUGE)], []), BadModelFile, "in the middle of metadata entry 0"),
    "key bytes": (raw_file([raw_entry(b"\xff", 4, bytes(4))], []), BadModelFile, "not UTF-8"),
    "key twice": (raw_file([GOOD_ENTRY, GOOD_ENTRY], []), BadModelFile, "metadata key 'k' twice"),
    "value type": (raw_file([raw_entry(b"k", 13, bytes(4))], []), BadModelFile, "'k' has type 13"),
    "nested array": (
        raw_file([raw_entry(b"k", 9, struct.pack("<IQ", 9, 1))], []),
        BadModelFile,
        "'k' has an array of type 9",
    ),
    "number count": (raw_file([raw_entry(b"k", 9, struct.pack("<IQ", 4, HUGE))], []), BadModelFile, "announces"),
    "string count": (raw_file([raw_entry(b"k", 9, struct.pack("<IQ", 8, HUGE))], []), BadModelFile, "announces"),
    "string length": (
        raw_file([raw_entry(b"k", 9, struct.pack("<IQQQ", 8, 2, HUGE, 1))], []),
        BadModelFile,
        "in the middle of metadata 'k'",
    ),
    "last string length": (
        raw_file([raw_entry(b"k", 9, struct.pack("<IQQ", 8, 1, 2**40))], []),
        BadModelFile,
        "in the middle of metadata 'k'",
    ),
    "alignment": (
        raw_file([raw_entry(b"general.alignment", 4, struct.pack("<I", 24))], []),
        BadModelFile,
        "general.alignment is 24",
    ),
    "alignment text": (
        raw_file([raw_entry(b"general.alignment", 8, raw_string(b"32"))], []),
        BadModelFile,
        "general.alignment is '32'",
    ),
    "tensor twice": (raw_file([], [raw_tensor(), raw_tensor()]), BadModelFile, "tensor 'w' twice"),
    "dimensions": (raw_file([], [raw_tensor(shape=(1,) * 5)]), BadModelFile, "5 dimensions, expected 1 to 4"),
    "zero rows": (raw_file([], [raw_tensor(shape=(32, 0))]), BadModelFile, "expected no zero"),
    "ragged block": (raw_file([], [raw_tensor(shape=(33, 1), kind=8)]), BadModelFile, "a multiple of 32"),
    "tensor type": (raw_file([], [raw_tensor(kind=77)]), UnsupportedModel, "type number 77"),
    "offset": (raw_file([], [raw_tensor(offset=8)]), BadModelFile, "a multiple of the alignment 32"),
    "data": (raw_file([], [raw_tensor()], data=bytes(255)), BadModelFile, "is truncated: tensor 'w' needs"),
    "huge shape": (raw_file([], [raw_tensor(shape=(2**62, 2**62))]), BadModelFile, "is truncated"),
    "huge offset": (raw_file([], [raw_tensor(offset=2**64 - 32)]), BadModelFile, "is truncated"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named_on_one_line(name: str, tmp_path: Path) -> None:
    raw, kind, words = DAMAGED[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    with pytest.raises(GlasschatError) as caught:
        open_gguf(path)
    message = str(caught.value)
    assert type(caught.value) is kind
    assert words in message and str(path) in message and "\n" not in message


def test_the_undamaged_form_of_these_files_opens(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(raw_file([GOOD_ENTRY], [raw_tensor()], version=2))
    file = open_gguf(path)
    assert file.version == 2 and file.metadata["k"] == 1 and file.tensors["w"].shape == (2, 32)


def test_text_that_is_not_utf8_is_an_error_when_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(raw_file([raw_entry(b"k", 9, struct.pack("<IQ", 8, 1) + raw_string(b"\xff"))], []))
    words = open_gguf(path).metadata["k"]
    readers: list[Callable[[], object]] = [lambda: words[0], lambda: list(words)]  # type: ignore[index, arg-type]
    for read in readers:
        with pytest.raises(BadModelFile, match="string 0 of k is not UTF-8"):
            read()


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelNotFound, match="cannot be read"):
            open_gguf(path)


def read_all(file: GGUFFile) -> None:
    for value in file.metadata.values():
        if isinstance(value, StringArray):
            list(value)
    for name, info in file.tensors.items():
        assert len(file.data(name)) == info.nbytes


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fuzzed_bytes_give_only_our_errors(small: Path, tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(small.read_bytes())
    described = 900  # beyond this lies tensor data, where a changed byte changes nothing
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, described))
        patch = data.draw(st.binary(min_size=1, max_size=8) | st.just(b"\xff" * 8) | st.just(struct.pack("<Q", 2**40)))
        raw[at : at + len(patch)] = patch
    del raw[data.draw(st.integers(0, len(raw)) | st.just(len(raw))) :]
    path = tmp_path / "fuzzed.gguf"
    path.write_bytes(raw)
    try:
        read_all(open_gguf(path))
    except GlasschatError as error:
        assert "\n" not in str(error)
