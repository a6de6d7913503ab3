"""Every family on WebGPU in f32, against what Transformers gives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from inference.executor import SampleRequest
from inference.gpu.executor import WebGpuExecutor
from inference.sampling import Sampling
from tests.inference.opening import open_webgpu, run_ids
from tests.inference.tiny_golden import (
    FAMILIES,
    GGUF_FAMILIES,
    SIZES,
    TOLERANCE,
    arrays,
    check_logits,
    folder,
    golden,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=FAMILIES)
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[str, WebGpuExecutor]]:
    """A family and its executor."""
    executor = open_webgpu(folder(request.param) / "config.json")
    yield request.param, executor
    executor.close()


def logits_of(executor: WebGpuExecutor, family: str, size: int) -> np.ndarray:
    logits = run_ids(executor, golden(family)[f"ids_{size}"].tolist())
    assert logits is not None
    return logits


def test_logits(opened: tuple[str, WebGpuExecutor]) -> None:
    """150 ids are several windows of 32."""
    family, executor = opened
    for size in SIZES:
        check_logits(family, size, logits_of(executor, family, size))


@pytest.mark.parametrize("name", ["a", "b"])
def test_greedy_with_the_token_fed_back_on_the_gpu(opened: tuple[str, WebGpuExecutor], name: str) -> None:
    family, executor = opened
    ids, expected = (golden(family)[f"greedy_{name}{end}"].tolist() for end in ("_prompt", ""))
    cache = executor.new_cache(len(ids) + len(expected))
    stream = executor.stream(cache, ids, SampleRequest(Sampling(temperature=0), 3, tuple(ids)))
    assert [next(stream).id for _ in expected] == expected
    stream.close()
    cache.close()


@pytest.mark.slow
@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_f16_gguf_logits(family: str) -> None:
    executor = open_webgpu(folder(family) / "gguf" / "model-f16.gguf")
    for size in (33, 150):
        check_logits(family, size, logits_of(executor, family, size))
    executor.close()


@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_q8_0_gguf_logits(family: str) -> None:
    quantised = arrays(folder(family) / "gguf" / "golden.npz")
    executor = open_webgpu(folder(family) / "gguf" / "model-q8_0.gguf")
    logits = logits_of(executor, family, 33)
    np.testing.assert_allclose(logits[:, quantised["cols"]], quantised["q8_0_logits_33"], atol=TOLERANCE)
    executor.close()
