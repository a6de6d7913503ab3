"""Twin lanes on the screen: one question in two lanes, where they part, one of them kept."""

from __future__ import annotations

from textual.pilot import Pilot
from textual.widgets import Static

from app.conversation import Answer
from app.screens.models import ModelMenu
from app.screens.twin import TwinScreen
from app.twin_gap import TwinGap
from app.twin_lane import Lane, LaneHeading
from app.widgets.lane_text import LaneText
from inference.errors import ContextFull, DoesNotFit
from inference.events import Token
from inference.twin_events import Divergence, KlDivergence
from tests.app.pictures import LARGE, Pictures
from tests.app.scripted_engine import Script
from tests.app.test_alternatives import closed, replies
from tests.app.test_branches import shown, tell, tree
from tests.app.test_chat import MakeApp, answered, chat, loaded, notifications, state, until

ONE = ("The ", "sea ", "rises ", "[b]slowly[/b]\x1b[31m.")
OTHER = ("The ", "sea ", "falls ", "fast.")
HIGH = """The sea rises and falls twice a day, because of the moon.

1. Spring tides are **high**.
2. Neap tides are low."""
LOW = """The sea rises and falls twice a day, since the moon pulls it.

The sun does the same, but less so: 東京 has 1.9 metres."""
SLOW = tuple(f"a{index} " for index in range(10_000))


def at_lanes(pilot: Pilot[None]) -> bool:
    return isinstance(pilot.app.screen, TwinScreen)


def text(pilot: Pilot[None], index: int) -> str:
    return pilot.app.screen.query_one(f"#text-{index}", LaneText).text


def part(pilot: Pilot[None], name: str) -> str:
    return str(pilot.app.screen.query_one(f"#{name}", Static).content)


def marked(pilot: Pilot[None], index: int) -> str:
    return pilot.app.screen.query_one(f"#text-{index}", LaneText).marked


async def turn_on(pilot: Pilot[None], differences: str = "kv=tiered-int4") -> None:
    pilot.app.animation_level = "none"
    await loaded(pilot)
    await tell(pilot, f"/twin {differences}")
    await until(pilot, lambda: "Twin lanes are on" in shown(pilot))


async def ask(pilot: Pilot[None], question: str = "why?") -> None:
    await tell(pilot, question)
    await until(pilot, lambda: at_lanes(pilot))


async def over(pilot: Pilot[None]) -> None:
    await until(
        pilot, lambda: "goes back" in str(pilot.app.screen.query("TwinScreen > Vertical").first().border_subtitle)
    )


async def test_both_lanes_are_shown_and_the_right_one_is_kept(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=ONE, twin=OTHER))
    async with app.run_test(size=(80, 24)) as pilot:
        await turn_on(pilot, "kv=tiered-int4 temperature=1.2")
        await ask(pilot)
        await over(pilot)
        assert text(pilot, 0) == "The sea rises [b]slowly[/b]␛[31m." and text(pilot, 1) == "The sea falls fast."
        assert (marked(pilot, 0), marked(pilot, 1)) == ("rises ", "falls ")
        assert "they part at token 3" in part(pilot, "gap") and "mean " in part(pilot, "gap")
        assert "4 tokens" in part(pilot, "figures-0") and "KV " in part(pilot, "figures-0")
        assert "weights shared" in part(pilot, "figures-1")
        await pilot.press("right")
        await closed(pilot)
        await until(pilot, lambda: "The sea falls fast." in shown(pilot) and "1 other reply beside it" in shown(pilot))
        assert [each.text for each in replies(pilot)] == ["".join(ONE), "".join(OTHER)]
        assert "reused ·\n  kv=tiered-int4 temperature=1.2" in shown(pilot)
        left, right = (each.settings for each in replies(pilot))
        assert "twin" not in left and right["twin"] == "kv=tiered-int4 temperature=1.2" and right["temperature"] == 1.2
        assert [each.finish_reason for each in replies(pilot)] == ["stop", "stop"]
        # The conversation goes on under the kept one, again in two lanes.
        await ask(pilot, "more")
        await over(pilot)
        assert [turn["content"] for turn in app.engines[0].prompts[-1]] == ["why?", "The sea falls fast.", "more"]
        await pilot.press("left")
        await closed(pilot)
        assert tree(pilot).active == replies(pilot)[0].id
        assert len(app.engines) == 1


def lane_of(pieces: tuple[str, ...]) -> Lane:
    """A lane that has come to its end."""
    lane = Lane(1, Answer(1, 1, "m", {}), LaneHeading("m", "paged"))
    for piece in pieces:
        lane.take(Token(7, piece, 0.0))
    lane.end("stop")
    return lane


def test_nothing_is_marked_while_the_lanes_are_equal() -> None:
    gap = TwinGap()
    for position in range(2):
        gap.take(KlDivergence(position, 0.0, 0.0))
    assert list(lane_of(("a", "b")).release(gap)) == [("a", "text"), ("b", "text")]


def test_the_first_visible_piece_from_where_they_part_is_marked_or_the_end() -> None:
    gap = TwinGap()
    gap.take(Divergence(1))
    assert list(lane_of(("a", "", "b", "c")).release(gap)) == [("a", "text"), ("b", "mark"), ("c", "text")]
    assert list(lane_of(("a",)).release(gap)) == [("a", "text"), ("∎", "mark")]


def test_a_token_waits_until_it_is_known_whether_the_lanes_part_there() -> None:
    lane, gap = Lane(1, Answer(1, 1, "m", {}), LaneHeading("m", "paged")), TwinGap()
    for piece in ("a", "b"):
        lane.take(Token(7, piece, 0.0))
    gap.take(KlDivergence(0, 0.0, 0.0))
    assert list(lane.release(gap)) == [("a", "text")]
    gap.take(Divergence(1))
    assert list(lane.release(gap)) == [("b", "mark")]


async def test_escape_stops_both_and_then_goes_back_to_the_left_one(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=SLOW, tokens_per_s=200))
    async with app.run_test(size=(80, 24)) as pilot:
        await turn_on(pilot, "seed=3")
        await ask(pilot)
        await until(pilot, lambda: "a9 " in text(pilot, 1))
        await pilot.press("escape")
        await over(pilot)
        assert "stopped" in part(pilot, "figures-0") and "stopped" in part(pilot, "figures-1")
        assert state(pilot) == "ready"
        await pilot.press("escape")
        await closed(pilot)
        await until(pilot, lambda: "< 1/2 >" in shown(pilot) and "stopped" in shown(pilot))
        assert [each.finish_reason for each in replies(pilot)] == ["cancelled", "cancelled"]
        assert state(pilot) == "ready"


async def test_one_is_kept_while_both_are_written(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=SLOW, tokens_per_s=200))
    async with app.run_test(size=(120, 40)) as pilot:
        await turn_on(pilot, "seed=3")
        await ask(pilot)
        await until(pilot, lambda: "a9 " in text(pilot, 1))
        await pilot.press("right")
        await closed(pilot)
        await until(pilot, lambda: "< 2/2 >" in shown(pilot))


async def test_what_needs_an_engine_of_its_own_gets_one_and_gives_it_back(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=ONE), Script(pieces=OTHER))
    async with app.run_test(size=(120, 40)) as pilot:
        await turn_on(pilot, "dtype=f16")
        assert "is loaded a second time" in shown(pilot)
        memory = app.engines[0].memory()
        taken = memory.weights_bytes + memory.scratch_bytes + memory.staging_bytes
        assert app.engines[1].options == {
            "dtype": "f16",
            "loras": (),
            "taken": taken + app.engines[0].sequence().kv_stats().capacity_bytes,
        }
        await ask(pilot)
        await over(pilot)
        assert text(pilot, 1) == "".join(OTHER) and "weights shared" not in part(pilot, "figures-1")
        await pilot.press("left")
        await closed(pilot)
        await tell(pilot, "/twin off")
        await until(pilot, lambda: "Twin lanes are off" in shown(pilot))
        await until(pilot, lambda: app.engines[1].closed and not app.engines[0].closed)
        await tell(pilot, "alone")
        await until(pilot, lambda: state(pilot) == "ready" and "".join(ONE)[:10] in shown(pilot))
        assert not at_lanes(pilot)


async def test_another_model_has_no_divergence_and_says_why(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=ONE), Script(pieces=OTHER, model="Other-1B"))
    async with app.run_test(size=(80, 24)) as pilot:
        await turn_on(pilot, "model=second")
        await ask(pilot)
        await over(pilot)
        assert "no KL divergence: the vocabularies" in part(pilot, "gap")
        assert (marked(pilot, 0), marked(pilot, 1)) == ("", "")
        await pilot.press("right")
        await closed(pilot)
        assert [each.model for each in replies(pilot)] == ["Scripted-135M", "Other-1B"]


async def test_a_second_model_that_does_not_fit_leaves_one_lane(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=ONE), Script(load_error=DoesNotFit("it does not fit beside the first")))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await tell(pilot, "/twin weights=q8")
        await until(pilot, lambda: "✗ it does not fit beside the first" in shown(pilot))
        await tell(pilot, "why?")
        await answered(pilot)
        assert not at_lanes(pilot)


async def test_another_model_for_the_chat_ends_the_lanes(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=ONE), Script(pieces=OTHER), Script(pieces=ONE, model="Third-1B"))
    async with app.run_test(size=(120, 40)) as pilot:
        await turn_on(pilot, "dtype=f32")
        await tell(pilot, "/model third")
        await loaded(pilot, "Third-1B")
        assert "Twin lanes are off" in shown(pilot) and app.engines[1].closed
        await tell(pilot, "why?")
        await answered(pilot)


async def test_an_error_in_the_middle_keeps_what_there_is(make_app: MakeApp) -> None:
    app = make_app(Script(pieces=SLOW, error=ContextFull("they do not fit"), error_after=4))
    async with app.run_test(size=(120, 40)) as pilot:
        await turn_on(pilot)
        await ask(pilot)
        await over(pilot)
        assert "they do not fit" in notifications(pilot)
        await pilot.press("escape")
        await closed(pilot)
        assert [each.text for each in replies(pilot)] == ["a0 a1 a2 a3 "] * 2


async def test_what_cannot_be_is_told(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for command, why in (
            ("/twin", "Twin lanes are off"),
            ("/twin kv=cubic", "invalid choice: 'cubic'"),
            ("/twin speed=2", "NAME=VALUE"),
            ("/twin kv=ring", "the ring layout needs"),
        ):
            await tell(pilot, command)
            await until(pilot, lambda why=why: why in notifications(pilot) + shown(pilot))  # type: ignore[misc]
        assert not chat(pilot).twin.on and state(pilot) == "ready"


async def test_without_a_model_there_are_no_lanes(make_app: MakeApp) -> None:
    async with make_app(model="").run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(pilot.app.screen, ModelMenu))
        chat(pilot).twin.run("seed=3")
        await until(pilot, lambda: "No model is loaded" in notifications(pilot))
        assert not chat(pilot).twin.on


async def test_what_it_looks_like(make_app: MakeApp, steady: None, pictures: Pictures) -> None:
    pieces = [tuple(reply[start : start + 5] for start in range(0, len(reply), 5)) for reply in (HIGH, LOW)]
    app = make_app(Script(pieces=pieces[0], twin=pieces[1]))
    async with app.run_test(size=LARGE) as pilot:
        await turn_on(pilot)
        await ask(pilot, "What are tides?")
        await over(pilot)
        await pictures.take(pilot, "twin")
