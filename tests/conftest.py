"""Fixtures that every package's tests share: the two real models, and the reference data in tests/data."""

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

# The same examples in every run, so that a change is judged by itself; `make test-all` draws new ones.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("new", derandomize=False, print_blob=True)
hypothesis.settings.load_profile("same")

DATA = Path(__file__).parent / "data"
MODELS = Path(os.environ.get("GLASSCHAT_TEST_MODELS") or "~/.cache/glasschat-tests").expanduser()


def _real_model(file: str) -> Path:
    path = MODELS / file
    if not path.is_file():
        pytest.fail(f"{path} is missing; fetch it with: python tools/fetch_test_models.py", pytrace=False)
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct in Q4_1 (llama family, BPE tokenizer, 98 MB)."""
    return _real_model("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, the base model, in Q4_K_M (gemma3 family, SentencePiece tokenizer, 253 MB)."""
    return _real_model("gemma-3-270m-q4_k_m.gguf")


@cache
def _load_golden(file: str) -> Any:
    path = DATA / "golden" / file
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Any]:
    """`golden("smollm2.json")` is that file of tests/data/golden, `golden("smollm2.npz")` its arrays by name."""
    return _load_golden


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], Path]:
    """`tiny("llama")` is that family's folder in tests/data/tiny; the models are in its gguf folder."""

    def folder(family: str) -> Path:
        path = DATA / "tiny" / family
        assert path.is_dir(), f"no tiny model of family {family} in {path.parent}"
        return path

    return folder


@cache
def _adapter_count() -> int:
    import wgpu

    return sum(adapter.info["backend_type"] != "OpenGL" for adapter in wgpu.gpu.enumerate_adapters_sync())


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests marked `gpu` where no WebGPU adapter exists."""
    if item.get_closest_marker("gpu") and _adapter_count() == 0:
        pytest.skip("no WebGPU adapter on this machine (tools/software_vulkan.py can install a software one)")
