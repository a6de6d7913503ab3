"""Models with random weights: their weights are what they say, and engines run them like any others."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from inference import bench
from inference.engine import Engine
from inference.errors import DoesNotFit
from inference.formats.planar import FORMATS
from inference.loading import OpenOptions
from inference.models.config import ModelConfig
from inference.plan.build import build
from inference.plan.fuse import fuse
from inference.plan.ops import WeightRef
from inference.random_model import RandomStore, open_random, random_config
from inference.shapes import SHAPES
from tests.inference.tiny_shape import TINY_SHAPE

OPTIONS = OpenOptions(context=64, dtype="f32")
DEVICES = ["cpu", pytest.param("webgpu", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    options = replace(OPTIONS, device=request.param)
    opened = open_random("tiny", options, shapes={"tiny": TINY_SHAPE})
    yield opened
    opened.close()


def matrices(config: ModelConfig, store: RandomStore) -> list[WeightRef]:
    plan = fuse(build(config, 1, "last"), store.formats)
    return [ref for op in plan.ops for ref in op.weights if not store.storage(ref)[0].vector]


@pytest.mark.parametrize("format_name", FORMATS)
def test_products_keep_the_size_of_what_is_multiplied(format_name: str) -> None:
    config = random_config(TINY_SHAPE, "tiny", format_name)
    store = RandomStore(config, format_name)
    for ref in matrices(config, store):
        tensor = store.load(ref)
        assert (tensor.format.name, tensor.rows, tensor.columns) == (format_name, ref.rows, ref.columns)
        weights = tensor.dequantize()
        assert weights.std() * ref.columns**0.5 == pytest.approx(1, rel=0.5 if format_name == "mxfp4" else 0.05)
        assert abs(weights.mean()) < 0.25 * weights.std()
        assert len(np.unique(weights, axis=0)) == ref.rows


def test_the_same_seed_draws_the_same_weights() -> None:
    config = random_config(TINY_SHAPE, "tiny", "q4_0")
    stores = [RandomStore(config, "q4_0", seed) for seed in (1, 1, 2)]
    first, same, other = (store.load(matrices(config, store)[0]).planes["low"] for store in stores)
    assert (first == same).all()
    assert (first != other).any()


def test_it_answers_with_sane_numbers(engine: Engine) -> None:
    logits = engine.logits([5, 300, 7, 0])
    assert np.isfinite(logits).all()
    assert 0.5 < logits.std() < 2
    assert len(np.unique(logits[-1])) > engine.info.vocab_size // 2
    assert engine.info.model == "tiny, random q4_0"


@pytest.mark.gpu
@pytest.mark.parametrize(("weights", "held"), [("auto", "q4_0"), ("q8", "q8_0"), ("q4", "q4_1"), ("f16", "f16")])
def test_weights_chooses_the_format(weights: Literal["auto", "q8", "q4", "f16"], held: str) -> None:
    opened = open_random("tiny", replace(OPTIONS, device="webgpu", weights=weights), shapes={"tiny": TINY_SHAPE})
    assert {row.weight.partition(",")[0] for row in opened.plan() if row.kind in ("matmul", "lm_head")} == {held}
    opened.close()


def test_it_can_be_measured(engine: Engine) -> None:
    report = bench.run(engine, prompts=(5,), generate=2, depths=(0, 9), repeats=1)
    assert [each.depth for each in report.decode] == [0, 9]
    assert report.model == "tiny, random q4_0"


@pytest.mark.parametrize(("name", "billions", "tied"), [("1b", 1.236, True), ("8b", 8.030, False)])
def test_shapes_have_the_parameters_of_their_models(name: str, billions: float, tied: bool) -> None:
    config = random_config(SHAPES[name], name)
    refs = {config.weights[ref.name]: ref for op in build(config, 1, "last").ops for ref in op.weights}
    assert sum(ref.rows * ref.columns for ref in refs.values()) / 1e9 == pytest.approx(billions, abs=5e-4)
    assert (config.weights["embedding"] == config.weights["lm_head"]) is tied


def test_what_does_not_fit_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.fit_target.physical_bytes", lambda: 2**20)
    monkeypatch.setattr(RandomStore, "load", lambda *_: pytest.fail("a weight was made"))
    with pytest.raises(DoesNotFit, match="tiny, random q4_0 does not fit"):
        open_random("tiny", replace(OPTIONS, device="cpu"), shapes={"tiny": TINY_SHAPE})


@pytest.mark.gpu
def test_what_does_not_fit_a_gpu_is_told_with_what_would_do() -> None:
    options = replace(OPTIONS, device="webgpu", weights="f16", gpu_memory=11 * 2**19, context=None, gpu_layers=99)
    with pytest.raises(DoesNotFit, match="it would with --context"):
        open_random("tiny", options, shapes={"tiny": TINY_SHAPE})
