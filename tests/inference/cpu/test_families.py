"""Every family on the NumPy executor, from each description of it, against what Transformers gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inference import Engine, Sampling
from inference.cpu.executor import NumpyExecutor
from inference.events import Finished, Token
from tests.inference.convert import ARCHITECTURES, convert
from tests.inference.opening import open_numpy
from tests.inference.tiny_golden import (
    FAMILIES,
    GGUF_FAMILIES,
    SIZES,
    TOLERANCE,
    Hidden,
    arrays,
    check_logits,
    first_difference,
    folder,
    golden,
    golden_json,
)

SOURCES = [
    *(f"{family}/{name}" for family in FAMILIES for name in ("config.json", "config.legacy.json")),
    *(f"{family}/gguf/model-f16.gguf" for family in GGUF_FAMILIES),
]


def run(executor: NumpyExecutor, ids: list[int]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits (n, V) and the residual stream."""
    hidden = Hidden()
    cache = executor.new_cache(len(ids))
    logits = executor.forward(cache, ids, "all", hidden)
    cache.close()
    assert logits is not None
    return logits, hidden.states


@pytest.mark.parametrize(
    ("fused", "kernel"),
    [(True, "reference"), (False, "reference"), (True, "column_major")],
    ids=["fused", "unfused", "column_major"],
)
@pytest.mark.parametrize("source", SOURCES)
def test_logits_and_hidden_states(source: str, fused: bool, kernel: str) -> None:
    family, _, file = source.partition("/")
    executor = open_numpy(folder(family) / file, fused, kernel=kernel)
    for size in SIZES:
        logits, hidden = run(executor, golden(family)[f"ids_{size}"].tolist())
        if size in (7, 150):
            assert len(hidden) == executor.config.num_layers + 2
            assert first_difference(family, size, hidden) == "no hidden state differs"
        check_logits(family, size, logits, hidden)


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_converted_to_gguf(family: str, tmp_path: Path) -> None:
    executor = open_numpy(convert(family, tmp_path / "model.gguf"))
    for size in SIZES:
        check_logits(family, size, *run(executor, golden(family)[f"ids_{size}"].tolist()))


@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_q8_0_logits(family: str) -> None:
    ids, quantised = golden(family), arrays(folder(family) / "gguf" / "golden.npz")
    executor = open_numpy(folder(family) / "gguf" / "model-q8_0.gguf")
    for size, rows, name in ((33, 33, "q8_0_logits_33"), (150, 8, "q8_0_logits_150_last8")):
        logits, _ = run(executor, ids[f"ids_{size}"].tolist())
        np.testing.assert_allclose(logits[-rows:, quantised["cols"]], quantised[name], atol=TOLERANCE)


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy(family: str, name: str) -> None:
    """One token at a time, over a cache."""
    ids, expected = (golden(family)[f"greedy_{name}{end}"].tolist() for end in ("_prompt", ""))
    executor = open_numpy(folder(family) / "config.json")
    cache = executor.new_cache(len(ids) + len(expected))
    found: list[int] = []
    for _ in expected:
        logits = executor.forward(cache, found[-1:] or ids, "last")
        assert logits is not None
        found.append(int(logits.argmax()))
    assert found == expected


@pytest.mark.parametrize("family", [family for family in FAMILIES if "stop" in golden_json(family)["greedy"]])
def test_a_reply_ends_at_a_stop_token(family: str) -> None:
    stop = golden_json(family)["greedy"]["stop"]
    engine = Engine.open(folder(family), device="cpu")
    events = list(engine.generate(stop["prompt"], Sampling(temperature=0)))
    engine.close()
    # What the stop leaves of an incomplete character comes last, with no token of its own.
    ids = [event.id for event in events if isinstance(event, Token) and event.id >= 0]
    assert ids == stop["tokens"][:-1]
    assert isinstance(events[-1], Finished) and events[-1].reason == "stop"


@pytest.mark.parametrize(("layer", "place"), [(0, "the embedding"), (3, "layer 2"), (5, "the final norm")])
def test_the_message_names_the_first_layer_that_differs(layer: int, place: str) -> None:
    logits, hidden = run(open_numpy(folder("llama") / "config.json", fused=False), golden("llama")["ids_7"].tolist())
    for later in range(layer, len(hidden)):
        hidden[later] = hidden[later] + 0.01
    with pytest.raises(AssertionError, match=rf"llama, 7 ids: logits differ by 0\.01.*leaves {place}: by 0\.01"):
        check_logits("llama", 7, logits + 0.01, hidden)
