"""Whether a model fits, in `chat models info` and in the model menu."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import OptionList

from app import fit_report
from app.fit_report import FitFinder, fit_rows
from app.options import EngineOptions
from app.screens.models import ModelMenu
from inference import fit_target
from inference.fit import Fit
from inference.fit_target import FitTarget, webgpu_target
from tests.app.conftest import FIT, MadeApp
from tests.app.scripted_engine import Script
from tests.app.test_chat import loaded, until
from tests.inference.test_fit import CAPS

MakeApp = Callable[..., MadeApp]
CPU = EngineOptions(device="cpu", context=512)


@pytest.fixture
def llama(tiny: Callable[[str], Path]) -> Path:
    return tiny("llama") / "gguf" / "model-q8_0.gguf"


def set_memory(monkeypatch: pytest.MonkeyPatch, memory: int | None) -> None:
    monkeypatch.setattr(fit_target, "physical_bytes", lambda: memory)


def test_the_table_of_a_model_that_fits(llama: Path) -> None:
    rows = fit_rows(llama, CPU)
    assert [key for key, _ in rows] == ["weights", "KV cache", "scratch", "scratch", "scratch", "fit"]
    assert rows[0][1].startswith("f32, ") and rows[1][1].startswith("paged (")
    assert rows[-1][1].startswith("fits the CPU: it needs ") and "a context of 512" in rows[-1][1]


def test_the_table_of_a_model_that_does_not(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_memory(monkeypatch, 2 << 20)
    fit, advice = fit_rows(llama, replace(CPU, context=None))[-2:]
    assert fit[0] == "fit" and fit[1].startswith("does not fit the CPU: ") and fit[1].endswith("of the machine")
    assert advice[0] == "advice" and "smaller" in advice[1]


def test_what_does_not_fit_a_card_is_split(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(CPU, device="webgpu", gpu_memory=1_200_000)
    # Its steps are short: a model so small takes more for the activations of long ones than for its layers.
    target = webgpu_target(replace(CAPS, software=True), "DiscreteGPU", "f32", options.gpu_memory)
    monkeypatch.setattr(fit_target, "find_target", lambda *_: target)
    key, said = fit_rows(llama, options)[-1]
    assert key == "placement" and re.match(r"webgpu: [1-3] of 4 layers; cpu: .* \(all of it does not fit a card", said)
    key, said = fit_rows(llama, replace(options, gpu_layers=4))[-1]
    assert key == "placement" and "does not fit a card" in said
    monkeypatch.setattr(fit_target, "find_target", lambda *_: replace(target, memory=None))
    assert [key for key, _ in fit_rows(llama, options)][-1] == "fit"


def test_what_cannot_be_opened_is_not_known(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("not a model")
    ((key, said),) = fit_rows(tmp_path / "text.gguf", CPU)
    assert key == "fit" and said.startswith("not known: ") and "text.gguf" in said
    assert "--extend-context" in fit_rows(llama, replace(CPU, context=10**6))[0][1]
    finder = FitFinder(CPU)
    assert finder(tmp_path / "text.gguf", "cpu") == finder(tmp_path / "none", "cpu") == Fit()


def test_answers_are_kept_while_the_file_is_the_same(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: list[str] = []

    def find_target(device: str, *_: object) -> FitTarget:
        devices.append(device)
        return FitTarget("cpu", "the CPU", 1 << 30, "the machine")

    monkeypatch.setattr(fit_target, "find_target", find_target)
    path = tmp_path / "model.gguf"
    path.write_bytes(llama.read_bytes())
    finder = FitFinder(CPU)
    first = finder(path, "")
    assert first.fits
    monkeypatch.setattr(fit_report, "_open", lambda *_: pytest.fail("the file was looked at again"))
    assert finder(path, "") == first
    monkeypatch.undo()
    monkeypatch.setattr(fit_target, "find_target", find_target)
    assert finder(path, "webgpu") == first and devices == ["cpu", "webgpu"]
    path.write_bytes(b"not a model any more")
    assert finder(path, "") == Fit() and devices == ["cpu", "webgpu"]


async def test_the_menu_opens_before_it_is_known_what_fits(make_app: MakeApp) -> None:
    app, known = make_app(Script()), threading.Event()

    def find_fit(path: Path, device: str) -> Fit:
        known.wait(10)
        return FIT

    app._find_fit = find_fit

    def lines() -> str:
        options = app.screen.query_one(OptionList).options
        return "\n".join(str(option.prompt) for option in options)

    async with app.run_test() as pilot:
        await loaded(pilot)
        await pilot.press("f5")
        await until(pilot, lambda: isinstance(app.screen, ModelMenu) and "SmolLM2" in lines())
        assert "fits" not in lines()
        known.set()
        await until(pilot, lambda: "fits, 600.0 MiB" in lines())
        await pilot.press("escape")
