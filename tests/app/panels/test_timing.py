"""Timing: the figures follow from the tokens, and fit the panel."""

from __future__ import annotations

import numpy as np
import pytest

from app.engine_events import ReplyStarted
from app.panels.reply_trace import ReplyTrace
from app.panels.timing_figures import head_text, spans_text, timing_figures, token_speeds
from app.theme import make_look
from inference.events import Finished, StepSpans, Timings, Token, TokenTimes

LOOK = make_look({})


def trace(walls: list[float]) -> ReplyTrace:
    """Tokens with these wall times, of which 1/10 each was encoding, sampling, text and handing over, 5/10 waiting."""
    found = ReplyTrace()
    found.hear(ReplyStarted(None, False))
    for wall in walls:
        step = StepSpans(wall / 10, wall / 2, wall / 10, wall * 2, wall * 3)
        found.hear(Token(1, "", -1.0, (), TokenTimes(wall, wall / 10, step, wall / 10)))
    found.hear(Finished("stop", Timings(ttft_s=0.25)))
    return found


def test_the_figures_leave_the_first_token_out() -> None:
    figures = timing_figures(trace([9.0, *([0.01] * 19), 0.03]))
    assert figures is not None and figures.tokens == 21
    assert figures.first_s == 0.25
    assert figures.mean_s == pytest.approx((19 * 0.01 + 0.03) / 20)
    assert figures.at_95_s == pytest.approx(0.01)
    assert figures.spans == pytest.approx(
        {"report": figures.mean_s / 10, "encode": figures.mean_s / 10, "wait": figures.mean_s / 2}
        | {"sample": figures.mean_s / 10, "text": figures.mean_s / 10}
    )
    assert figures.beside == pytest.approx({"finish": figures.mean_s * 2, "submit": figures.mean_s * 3})
    assert figures.covered == pytest.approx(0.9)
    assert 0 < figures.interface_s < 1
    assert timing_figures(trace([0.01])) is None


def test_the_95th_percentile_is_a_wall_time_that_so_many_stay_within() -> None:
    walls = np.random.default_rng(1).random(200).tolist()
    figures = timing_figures(trace([0.0, *walls]))
    assert figures is not None
    assert sum(wall <= figures.at_95_s for wall in walls) == 190


def test_rates_are_tokens_over_the_time_that_they_took() -> None:
    assert token_speeds([0.5, 0.3, 0.1, 0.1], 2)[0] == pytest.approx([2.5, 10.0])
    assert token_speeds([0.5, 0.3, 0.1, 0.1], 2)[1] == [0.5, 0.1]
    assert token_speeds([0.5], 40) == ([2.0], [0.5])
    assert token_speeds([], 40) == ([], [])
    rates, _ = token_speeds([0.01] * 1000, 36)
    assert len(rates) == 36 and rates == pytest.approx([100.0] * 36)


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("width", [28, 38, 100])
def test_the_text_fits_and_names_what_ran(gpu: bool, width: int) -> None:
    figures = timing_figures(trace([0.5, 0.010, 0.012]))
    assert figures is not None
    lines = spans_text(figures, gpu, LOOK, width).plain.split("\n")
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert ("wait for" in text) is gpu and ("compute" in text) is not gpu and ("submit" in text) is gpu
    assert "5.50 ms" in text and " 50%" in text and "90%" in text
    assert "3 tokens · first after 250 ms" in head_text(figures, LOOK).plain
    assert "11.0 ms" in head_text(figures, LOOK).plain


@pytest.mark.parametrize("width", [28, 100])
def test_of_a_model_that_is_split_what_moves_is_told(width: int) -> None:
    figures = timing_figures(trace([0.5, 0.010, 0.012]))
    assert figures is not None
    text = spans_text(figures, True, LOOK, width, moved=4608).plain
    assert max(map(len, text.split("\n"))) <= width
    assert "both devices" in text and text.endswith("4,608 B") and "submit" not in text
