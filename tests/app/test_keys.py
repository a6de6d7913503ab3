"""Keys chosen by the person: which can be had, and what they then do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

from app.keys import key_bindings, usable_keys
from app.panels.kv_panel import KvPanel
from app.screens.help import HelpScreen
from tests.app.conftest import MadeApp
from tests.app.scripted_engine import Script
from tests.app.test_chat import answered, chat, loaded, prompt, transcript, until

MakeApp = Callable[..., MadeApp]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (
            {"chat.kv": "f3"},
            "keys.chat.kv is 'f3': f3 is the key of chat.memory (Where the bytes are, live); it stays",
        ),
        ({"chat.kv": "f10", "chat.memory": "f10"}, "f10 is the key of chat."),
        ({"chat.kv": "ctrl+q"}, "ctrl+q is the key of app.quit"),
        ({"help.close": "ctrl+q"}, "ctrl+q is the key of app.quit"),
        ({"chat.kv": "x"}, "x is typed into the message"),
        ({"chat.kv": "space"}, "space is typed into the message"),
        ({"chat.kv": "ctrl+k"}, "ctrl+k edits the message"),
        ({"chat.kv": "ctrl+nonsense"}, "there is no key ctrl+nonsense"),
        ({"chat.kv": " , "}, "expected a key such as f7"),
        ({"chat.nothing": "f10"}, "nothing is called chat.nothing"),
    ],
)
def test_keys_that_cannot_be_had_are_told(wanted: dict[str, str], said: str) -> None:
    keymap, notices = usable_keys(wanted, key_bindings())
    assert keymap == {}
    assert said in notices[0]
    assert "\n" not in notices[0]


@pytest.mark.parametrize(
    "wanted",
    [
        {"chat.kv": "f3", "chat.memory": "f4"},  # swapped
        {"chat.models": "f10,ctrl+o"},
        {"help.close": "f3"},  # the help covers the chat
        {"dtypes.phase": "x"},  # a panel takes letters
        {"chat.home": "ctrl+k"},  # the application looks at it before the text does
        {"chat.copy": "ctrl+c"},
        {"prompt.send": "ctrl+s"},
    ],
)
def test_keys_that_can_be_had(wanted: dict[str, str]) -> None:
    assert usable_keys(wanted, key_bindings()) == (wanted, ())


def test_each_default_key_could_be_chosen() -> None:
    known = key_bindings()
    assert len(known) > 20
    assert usable_keys({each.id: ",".join(each.keys) for each in known}, known)[1] == ()


async def test_chosen_keys_work_and_are_shown(make_app: MakeApp) -> None:
    keys = {"chat.kv": "f10", "prompt.send": "ctrl+s", "prompt.newline": "enter", "chat.memory": "f5"}
    keys["chat.panels"] = "f12"
    app = make_app(Script(pieces=("hello",)), settings={"keys": keys})
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        taken = "keys.chat.memory is 'f5': f5 is the key of chat.models"
        await until(pilot, lambda: taken in transcript(pilot).text)
        await pilot.press("a", "enter", "b")
        assert prompt(pilot).text == "a\nb"
        await pilot.press("ctrl+s")
        await answered(pilot)
        panel = chat(pilot).query_one(KvPanel)
        await pilot.press("f4")
        assert not panel.display
        await pilot.press("f10")
        assert panel.display
        footer = chat(pilot).query_one(Footer)
        await until(
            pilot, lambda: ("f12", "Panels") in {(key.key_display, key.description) for key in footer.query(FooterKey)}
        )
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen))
        assert isinstance(pilot.app.screen, HelpScreen)
        keys_of = {what: key for _, rows in pilot.app.screen.sections for key, what in rows}
        assert keys_of["What the KV cache holds where, live"] == "f10"
        assert keys_of["Send the message"] == "^s"
