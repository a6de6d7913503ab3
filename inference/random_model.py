"""Models with random weights, of any shape and format: their speed is that of a real model, and nothing is fetched."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import tokenizers

from inference.chat_template import ChatTemplate
from inference.engine import Engine
from inference.formats.ggml_types import TYPES_BY_NAME
from inference.formats.planar import FORMATS, PlanarFormat, PlanarTensor
from inference.formats.tensors import TensorInfo
from inference.formats.words import Words
from inference.loading import OpenOptions, Progress, no_progress, open_parts
from inference.model_files import ModelFiles
from inference.model_text import ModelText
from inference.models.config import ModelConfig
from inference.models.families import config_from_hf
from inference.plan.build import build
from inference.plan.fuse import common_format
from inference.plan.ops import WeightRef
from inference.shapes import SHAPES
from inference.tokenizer import Tokenizer
from inference.vocabulary import TokenType, Vocabulary
from inference.weights import PRECISION_FORMATS, WeightStore

DEFAULT_FORMAT = "q4_0"

PIECE = 1_048_573
"""Words that a plane repeats: a prime, so that no two rows of a matrix begin at the same place of it."""


@dataclass(frozen=True)
class RandomFile:
    """Stands for a model file: its tensors have names, shapes and types, and no bytes."""

    path: Path
    tensors: Mapping[str, TensorInfo]

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        raise AssertionError(f"{name}: random weights are made by RandomStore, not read")


class RandomStore(WeightStore):
    """Weights drawn at random: matrices in one format whose products keep the size of what they multiply, norms of 1.

    Planes repeat one random piece, so that gigabytes cost no more than copying; groups share one scale.
    """

    def __init__(self, config: ModelConfig, format_name: str, seed: int = 0) -> None:
        self.file = RandomFile(Path(config.name), _tensors(config, format_name))
        super().__init__(self.file, config)
        self._seed = seed
        self._words = np.random.default_rng(seed).integers(0, 2**32, PIECE, np.uint32)

    def load(self, ref: WeightRef) -> PlanarTensor:
        name = common_format(ref.sources, self.formats)
        assert name is not None, "fusion stacks only weights that share a format"
        if self.storage(ref)[0].vector:
            ones = np.ones((ref.rows, ref.columns), np.float32)
            return PlanarTensor(FORMATS[name], ref.rows, ref.columns, {"low": ones.view(np.uint32)})
        form = FORMATS[name]
        random = np.random.default_rng((self._seed, crc32(ref.name.encode())))
        piece = _floats(random, form, ref.columns) if form.dense else self._words
        constant = scale_words(form, ref.columns)
        planes = {
            plane: np.full((ref.rows, words), constant[plane], np.uint32)
            if plane in constant
            else np.resize(np.roll(piece, random.integers(PIECE)), (ref.rows, words))
            for plane, words in form.row_words(ref.columns).items()
        }
        return PlanarTensor(form, ref.rows, ref.columns, planes)


def random_config(values: Mapping[str, Any], name: str, format_name: str = DEFAULT_FORMAT) -> ModelConfig:
    """The config of a model by the keys of its config.json. Raises the errors of a config that contradicts itself."""
    config = config_from_hf(values, RandomFile(Path(name) / "config.json", {}))
    return replace(config, name=f"{name}, random {format_name}")


def open_random(
    shape: str, options: OpenOptions, progress: Progress = no_progress, shapes: Mapping[str, Any] = SHAPES
) -> Engine:
    """An engine on a model of that shape. Matrices are q4_0, or what `options.weights` makes of floats.

    Raises DoesNotFit, and what else opening a model raises.
    """
    start = time.perf_counter()
    format_name = PRECISION_FORMATS.get(options.weights, DEFAULT_FORMAT)
    config = random_config(shapes[shape], shape, format_name)
    store = RandomStore(config, format_name)
    files = ModelFiles(Path(config.name), config, store.file, store, ())
    text: Future[ModelText] = Future()
    text.set_result(_text(config.vocab_size))
    return Engine(open_parts(files, text, options, progress, start))


def _tensors(config: ModelConfig, format_name: str) -> dict[str, TensorInfo]:
    """Every tensor that a plan of `config` reads: matrices in one format, vectors in f32."""
    found = {}
    for op in build(config, 1, "last").ops:
        for ref in op.weights:
            stored = config.weights[ref.name]
            kind = TYPES_BY_NAME["F32" if stored.vector else format_name.upper()]
            shape = (ref.rows * ref.columns,) if stored.vector else (ref.rows, ref.columns)
            nbytes = ref.rows * ref.columns // kind.block_size * kind.block_bytes
            found[stored.tensor] = TensorInfo(stored.tensor, kind.name, shape, 0, nbytes)
    return found


def _floats(random: np.random.Generator, form: PlanarFormat, columns: int) -> Words:
    """Words of normal deviates whose variance is 1 / columns."""
    values = random.standard_normal(2 * PIECE, np.float32) / np.float32(columns**0.5)
    match form.name:
        case "f32":
            return values[:PIECE].view(np.uint32)
        case "f16":
            return values.astype(np.float16).view(np.uint32)
    return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint32)


def scale_words(form: PlanarFormat, columns: int) -> dict[str, int]:
    """The word that fills each plane of scales, so that random quants become weights whose variance is 1 / columns.

    Where there is a minimum, it makes their mean 0.
    """
    if form.dense:
        return {}
    bits = form.low_bits + form.high_bits
    codes = np.arange(-128, 128) if bits == 8 else np.arange(2**bits) - form.zero
    quants = np.array(form.table) if form.table else codes
    step = 1 / (quants.std() * columns**0.5)
    mean = step * quants.mean()
    match form.scale_form:
        case "scale":
            return {"scales": _pair(step, step)}
        case "scale_min":
            return {"scales": _pair(step, -mean)}
        case "exponent":
            return {"scales": (128 + round(np.log2(step))) * 0x01010101}
        case "super_scale":
            return {"scales": 0x01010101, "supers": _pair(step, step)}
        case "super_scale_min":
            ones = 0x01010101 if form.code_bits == 8 else 0x11111111
            return {"scales": ones, "supers": _pair(step, mean)}
    raise ValueError(f"{form.name} has no scales")


def _pair(low: float, high: float) -> int:
    """Two numbers as f16 in a word."""
    return int(np.array([low, high], np.float16).view(np.uint32)[0])


def _text(vocab_size: int) -> ModelText:
    """A vocabulary of numbered tokens, which no text is encoded with."""
    tokens = [f"<{token}>" for token in range(vocab_size)]
    vocabulary = Vocabulary(False, tokens, np.full(vocab_size, TokenType.NORMAL, np.int32))
    tokenizer = Tokenizer(vocabulary, tokenizers.Tokenizer(tokenizers.models.BPE()))
    return ModelText(tokenizer, ChatTemplate.plain(), None, ())
