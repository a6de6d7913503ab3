"""The safetensors reader against the `safetensors` package, and against damage of every kind."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from inference.errors import BadModelFile, GlasschatError, ModelNotFound
from inference.formats.planar import from_ggml
from inference.formats.safetensors import INDEX, MAX_HEADER, SafetensorsFile, open_safetensors

QWEN2 = Path(__file__).parents[2] / "data" / "tiny" / "qwen2"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)


def raw_file(header: Any, data: bytes = bytes(16), length: int | None = None) -> bytes:
    """A file from a header, given as bytes or as what becomes JSON, and data."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype: Any = "F32", shape: Any = (2, 2), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def read_all(file: SafetensorsFile) -> None:
    for name, info in file.tensors.items():
        data = file.data(name)
        assert (data.dtype, data.shape) == (np.uint8, (info.nbytes,))
        assert not data.flags.writeable and not data.flags.owndata


def test_a_single_file(tmp_path: Path) -> None:
    path = tmp_path / "any.safetensors"
    arrays = {"matrix": MATRIX, "half": MATRIX[0].astype(np.float16), "ids": np.arange(3), "one": np.float32([[7]])}
    save_file({**arrays, "scalar": np.array(2, np.float32)}, path, metadata={"format": "np"})
    file = open_safetensors(path)
    assert file.path == path
    assert {name: (info.type, info.shape) for name, info in file.tensors.items()} == {
        "matrix": ("F32", (3, 4)),
        "half": ("F16", (4,)),
        "ids": ("I64", (3,)),
        "one": ("F32", (1, 1)),
        "scalar": ("F32", ()),
    }
    read_all(file)
    raw = path.read_bytes()
    for name, array in arrays.items():
        info = file.tensors[name]
        assert np.array_equal(file.data(name).view(array.dtype).reshape(array.shape), array)
        assert raw[info.offset : info.offset + info.nbytes] == array.tobytes()
    with pytest.raises(BadModelFile, match=r"any\.safetensors: has no tensor named missing"):
        file.data("missing")


@pytest.mark.parametrize("opened", ["", *SHARDS])
def test_a_sharded_model(opened: str) -> None:
    """The folder and each shard of it open the whole model; bfloat16 bytes are those of the reference."""
    file = open_safetensors(QWEN2 / opened)
    assert file.path == QWEN2 / INDEX
    assert file.tensors.keys() == json.loads((QWEN2 / INDEX).read_text())["weight_map"].keys()
    read_all(file)
    for shard in SHARDS:
        for name, reference in safetensors.deserialize((QWEN2 / shard).read_bytes()):
            info = file.tensors[name]
            assert (info.type, list(info.shape)) == (reference["dtype"], reference["shape"]) and info.type == "BF16"
            assert file.data(name).tobytes() == bytes(reference["data"])


def test_weights_that_are_not_aligned_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "odd.safetensors"
    header = json.dumps({"w": entry()}).encode()
    path.write_bytes(raw_file(header + b" " * (1 - len(header) % 2), MATRIX[0].tobytes()))
    file = open_safetensors(path)
    assert file.tensors["w"].offset % 2 == 1
    assert from_ggml("F32", file.data("w"), 2, 2).dequantize().tolist() == [[0, 1], [2, 3]]


def test_one_file_is_preferred_to_shards(tmp_path: Path) -> None:
    save_file({"w": MATRIX}, tmp_path / "model.safetensors")
    (tmp_path / INDEX).write_text("damaged")
    assert open_safetensors(tmp_path).path == tmp_path / "model.safetensors"


def test_links_to_files_elsewhere_are_followed(tmp_path: Path) -> None:
    """As in the hub's cache."""
    for name in (INDEX, *SHARDS):
        (tmp_path / name).symlink_to(QWEN2 / name)
    read_all(open_safetensors(tmp_path))


def test_empty_tensors_take_no_room(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_file({"w": entry(), "none": entry(shape=[0, 3], offsets=[16, 16])}))
    assert open_safetensors(path).tensors["none"].nbytes == 0


def twice(first: bytes, second: bytes) -> bytes:
    return b'{"w":' + first + b',"w":' + second + b"}"


W = json.dumps(entry()).encode()
WHOLE = len(raw_file({"w": entry()}))
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is 0 bytes long, shorter than the start of a safetensors file (8)"),
    "7 bytes": (b"\x01" + bytes(6), "is 7 bytes long"),
    "a page instead": (b"<!DOCTYPE html><html></html>", "the header takes"),
    "length beyond the file": (raw_file({}, length=400), "the header takes 400 bytes, expected no more than the 18"),
    "length of 64 bits": (raw_file({}, length=2**64 - 1), f"the header takes {2**64 - 1} bytes"),
    "header cut": (raw_file({"w": entry()})[:40], "it is truncated"),
    "no header": (raw_file(b""), "the header is not JSON (Expecting value"),
    "half a header": (raw_file(b'{"w":'), "the header is not JSON (Expecting value"),
    "not UTF-8": (raw_file(b'{"\xff":1}'), "the header is not JSON ('utf-8' codec"),
    "nested without end": (raw_file(b"[" * 200_000), "the header is not JSON (maximum recursion depth"),
    "long number": (raw_file(b'{"w":' + b"1" * 5000 + b"}"), "the header is not JSON (Exceeds the limit"),
    "a list": (raw_file([1, 2]), "the header is [1, 2], expected a JSON object"),
    "tensor twice": (raw_file(twice(W, W)), "the header has the key 'w' twice"),
    "field twice": (raw_file(b'{"w":{"dtype":"F32","dtype":"F16"}}'), "the header has the key 'dtype' twice"),
    "not described": (raw_file({"w": 3}), "tensor 'w' is described by 3, expected an object"),
    "name": (raw_file({"w\n\x1b[2J": entry()}), r"tensor 'w\n\x1b[2J' has a name that cannot be shown"),
    "surrogate": (raw_file(b'{"\\ud800":' + W + b"}"), r"tensor '\ud800' has a name that cannot be shown"),
    "dtype": (raw_file({"w": entry("Q4_0")}), "tensor 'w' has dtype 'Q4_0', expected one of F64,"),
    "dtype missing": (raw_file({"w": {"shape": [4]}}), "tensor 'w' has dtype None"),
    "dtype list": (raw_file({"w": entry(["F32"])}), "tensor 'w' has dtype ['F32']"),
    "negative": (raw_file({"w": entry(shape=[-2, -2])}), "tensor 'w' has shape [-2, -2], expected up to 64 whole"),
    "fraction": (raw_file({"w": entry(shape=[2.0, 2])}), "tensor 'w' has shape [2.0, 2]"),
    "truth": (raw_file({"w": entry(shape=[True, 4])}), "tensor 'w' has shape [True, 4]"),
    "no list": (raw_file({"w": entry(shape=4)}), "tensor 'w' has shape 4"),
    "huge": (raw_file({"w": entry(shape=[10**30])}), "tensor 'w' has shape [1000000000"),
    "overflow": (
        raw_file({"w": entry(shape=[2**62, 4])}),
        f"tensor 'w' has 16 bytes (data_offsets [0, 16]), expected {2**66}",
    ),
    "dimensions": (raw_file({"w": entry(shape=[1] * 65)}), "tensor 'w' has shape [1, 1, 1, 1, 1, 1, ...]"),
    "shape": (
        raw_file({"w": entry(shape=[2, 3])}),
        "tensor 'w' has 16 bytes (data_offsets [0, 16]), expected 24 for F32",
    ),
    "half bytes": (
        raw_file({"w": entry("F4", [31], [0, 15])}),
        "tensor 'w' has 15 bytes (data_offsets [0, 15]), expected 16",
    ),
    "reversed": (raw_file({"w": entry(offsets=[16, 0])}), "tensor 'w' has data_offsets [16, 0], expected the byte"),
    "before the data": (raw_file({"w": entry(offsets=[-16, 0])}), "tensor 'w' has data_offsets [-16, 0]"),
    "one offset": (raw_file({"w": entry(offsets=[16])}), "tensor 'w' has data_offsets [16]"),
    "no offsets": (raw_file({"w": {"dtype": "F32", "shape": [4]}}), "tensor 'w' has data_offsets None"),
    "truncated": (
        raw_file({"w": entry()}, bytes(15)),
        f"is truncated: tensor 'w' needs bytes up to {WHOLE}, the file has {WHOLE - 1}",
    ),
    "outside": (raw_file({"w": entry(offsets=[2**60, 2**60 + 16])}), "is truncated: tensor 'w' needs bytes up to"),
    "the same bytes": (
        raw_file({"w": entry(), "v": entry()}),
        "tensor 'v' overlaps tensor 'w': it starts at byte ",
    ),
    "overlap": (raw_file({"w": entry(), "v": entry(offsets=[8, 24])}, bytes(24)), "tensor 'v' overlaps tensor 'w'"),
    "hole": (
        raw_file({"w": entry(), "v": entry(offsets=[20, 36])}, bytes(36)),
        "tensor 'v' leaves a hole after tensor 'w'",
    ),
    "hole at the start": (
        raw_file({"w": entry(offsets=[4, 20])}, bytes(20)),
        "tensor 'w' leaves a hole after the header",
    ),
    "more data": (raw_file({"w": entry()}, bytes(20)), "has 4 bytes after tensor 'w'"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named_on_one_line(name: str, tmp_path: Path) -> None:
    raw, words = DAMAGED[name]
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with pytest.raises(BadModelFile) as caught:
        open_safetensors(path)
    message = str(caught.value)
    assert words in message and str(path) in message and message.isprintable() and len(message) < 1000


def test_the_undamaged_form_of_these_files_opens(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_file({"__metadata__": {"a": "b"}, "w": entry(), "v": entry("F4", [4], [16, 18])}, bytes(18)))
    assert {name: info.nbytes for name, info in open_safetensors(path).tensors.items()} == {"w": 16, "v": 2}


def test_a_header_beyond_the_limit_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write(raw_file(b"{}", length=MAX_HEADER + 1))
        file.truncate(2 * MAX_HEADER)  # a hole, which takes no room on the disk
    with pytest.raises(BadModelFile, match=f"the header takes {MAX_HEADER + 1} bytes"):
        open_safetensors(path)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    for name in (INDEX, *SHARDS):
        shutil.copy(QWEN2 / name, tmp_path)
    return tmp_path


NORM = "model.norm.weight"


def index_of(shard: object) -> str:
    return json.dumps({"weight_map": {"a": shard}})


EXPECTED_NAME = "expected the name of a .safetensors file in the same folder"


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("{ ", "the index is not JSON (Expecting property name"),
        ("[]", "the index is [], expected a JSON object"),
        ("{}", "weight_map is None, expected an object that maps tensors to files"),
        ('{"weight_map": [1]}', "weight_map is [1]"),
        ('{"weight_map": {}}', "weight_map is {}"),
        ('{"weight_map": {"a": "b.safetensors", "a": "c.safetensors"}}', "has the key 'a' twice"),
        (index_of(3), f"puts tensor 'a' into 3, {EXPECTED_NAME}"),
        (index_of("../x.safetensors"), f"puts tensor 'a' into '../x.safetensors', {EXPECTED_NAME}"),
        (index_of("/tmp/x.safetensors"), EXPECTED_NAME),
        (index_of("a/x.safetensors"), EXPECTED_NAME),
        (index_of("..\\x.safetensors"), EXPECTED_NAME),
        (index_of("x\0.safetensors"), EXPECTED_NAME),
        (index_of("pytorch_model.bin"), f"puts tensor 'a' into 'pytorch_model.bin', {EXPECTED_NAME}"),
        (index_of("x.safetensors"), "puts tensor 'a' into x.safetensors, which is not in the folder"),
        (index_of("x" * 5000 + ".safetensors"), "which is not in the folder"),
        (index_of(SHARDS[0]), f"{SHARDS[0]}: does not have tensor 'a', which {INDEX} puts there"),
    ],
    ids=range(16),
)
def test_a_bad_index(index: str, words: str, sharded: Path) -> None:
    (sharded / INDEX).write_text(index)
    with pytest.raises(BadModelFile) as caught:
        open_safetensors(sharded)
    assert words in str(caught.value) and str(caught.value).isprintable()


def test_damaged_shards(sharded: Path) -> None:
    first, second = (sharded / shard for shard in SHARDS)
    whole = second.read_bytes()
    second.write_bytes(whole[:-1])
    with pytest.raises(BadModelFile, match=f"{second.name}: is truncated: tensor '.*' needs"):
        open_safetensors(sharded)
    shutil.copy(first, second)
    with pytest.raises(BadModelFile, match=f"{second.name}: does not have tensor"):
        open_safetensors(sharded)
    weight_map = dict.fromkeys(open_safetensors(second.rename(sharded / "x.safetensors")).tensors, SHARDS[0])
    weight_map["model.embed_tokens.weight"] = "x.safetensors"
    (sharded / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(BadModelFile, match=r"has the tensor '.*', which is in .*\.safetensors too"):
        open_safetensors(sharded)
    shutil.copy(QWEN2 / INDEX, sharded)
    with pytest.raises(BadModelFile, match=f"{SHARDS[1]}, which is not in the folder; fetch {SHARDS[1]}"):
        open_safetensors(sharded)
    (sharded / INDEX).unlink()
    with pytest.raises(BadModelFile, match=f"{first.name}: is a shard, and its {INDEX} is not in the folder"):
        open_safetensors(first)


def test_tensors_that_the_index_leaves_out_are_there(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    del index["weight_map"][NORM]
    (sharded / INDEX).write_text(json.dumps(index))
    assert NORM in open_safetensors(sharded).tensors


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.PTH", "model.ckpt", "model.pkl"])
def test_pickles_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02}q\x00.")
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(BadModelFile, match=r"can run any code when it is read.*safetensors or GGUF") as caught:
            open_safetensors(path)
        assert name in str(caught.value) and "\n" not in str(caught.value)
    save_file({"w": MATRIX}, tmp_path / "model.safetensors")
    assert list(open_safetensors(tmp_path).tensors) == ["w"]


def test_nothing_to_open(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"has neither model\.safetensors nor model\.safetensors\.index\.json"):
        open_safetensors(tmp_path)
    for path in (tmp_path / "none.safetensors", tmp_path / SHARDS[0], tmp_path / ("x" * 5000)):
        with pytest.raises(ModelNotFound, match="cannot be read"):
            open_safetensors(path)


PATCHES = st.binary(min_size=1, max_size=8) | st.sampled_from(
    [b"-1", b'"', b"{", b"[[", b"99999999999", b"1e9", b"null", b"\xff" * 8, struct.pack("<Q", 2**40)]
)


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fuzzed_bytes_give_only_our_errors(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(raw_file({"w": entry(), "v": entry("BF16", [4], [16, 24])}, bytes(24)))
    index = bytearray(json.dumps({"weight_map": {"w": SHARDS[0], "v": SHARDS[0]}}).encode())
    target = data.draw(st.sampled_from([raw, index]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(target)))
        patch = data.draw(PATCHES)
        target[at : at + data.draw(st.integers(0, len(patch)))] = patch
    del target[data.draw(st.integers(0, len(target)) | st.just(len(target))) :]
    (tmp_path / SHARDS[0]).write_bytes(raw)
    (tmp_path / INDEX).write_bytes(index)
    try:
        read_all(open_safetensors(tmp_path))
    except GlasschatError as error:
        assert str(error).isprintable()
