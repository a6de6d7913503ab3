"""What a model needs is what it takes once it is open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inference import Engine
from inference.fit import Fit, fit_by_size, fit_of_file
from inference.host_memory import physical_bytes

Tiny = Callable[[str], Path]


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_file_needs_what_it_takes_once_it_is_open(tiny: Tiny, family: str) -> None:
    path = tiny(family) / "gguf" / "model-q8_0.gguf"
    fit = fit_of_file(path, "cpu")
    engine = Engine.open(path, device="cpu")
    kv = engine.sequence().kv_stats()
    # The file's rope factors are no weight that is held.
    assert fit.needed == pytest.approx(engine.memory().weights_bytes + kv.capacity_bytes, rel=1e-4)
    assert fit.available == physical_bytes()
    engine.close()
    assert fit.fits is True


def test_webgpu_does_not_tell_its_memory(tiny: Tiny) -> None:
    path = tiny("llama") / "gguf" / "model-q8_0.gguf"
    assert fit_of_file(path, "webgpu") == Fit(path.stat().st_size, None)
    assert fit_of_file(path, "webgpu").fits is None


def test_without_a_device_nothing_is_known(tiny: Tiny) -> None:
    assert fit_of_file(tiny("llama") / "gguf" / "model-q8_0.gguf", "") == Fit()
    assert fit_by_size(10, 20, "") == Fit()


def test_a_file_that_cannot_be_used_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("not a model")
    assert fit_of_file(tmp_path / "text.gguf", "cpu").fits is None


def test_before_it_is_here_only_the_weights_count() -> None:
    memory = physical_bytes()
    assert memory is not None and memory > 1 << 28
    assert fit_by_size(10, memory // 4 + 1, "cpu").fits is False
    assert fit_by_size(memory * 2, memory // 4, "cpu").fits is True
