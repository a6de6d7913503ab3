"""What settings are, where they come from, and what the file goes through."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.settings import Settings, Sources, load_settings, read_sources, save_settings, with_model
from app.settings.command import run_set
from app.settings.file import save_values
from app.settings.values import all_settings, check, parse, text_of

HAND_WRITTEN = """\
# mine
theme = "nord"   # the best
future = { a = 1 }

[keys]
chat.kv = "f7"

[elsewhere]
b = [1,
     2]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "settings.toml"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_what_is_saved_is_loaded(tmp_path_factory: Any, name: str) -> None:
    path = tmp_path_factory.mktemp("settings") / "deep" / "settings.toml"
    assert save_settings(Settings(model=name, theme="glass-light"), path) == ""
    assert load_settings(path) == (Settings(model=name, theme="glass-light"), "")
    assert [file.name for file in path.parent.iterdir()] == ["settings.toml"]


def test_every_type_is_saved_and_loaded(path: Path) -> None:
    changed = Settings(
        history=False,
        context=9,
        top_p=0.5,
        open_panels=("kv", "memory"),
        panel_sizes={"kv": 9},
        keys={"chat.kv": "f7"},
    )
    assert save_settings(changed, path) == ""
    assert load_settings(path) == (changed, "")


def test_no_file_gives_the_defaults(path: Path) -> None:
    assert load_settings(path) == (Settings(), "")
    assert not path.exists()


def test_the_defaults_are_valid() -> None:
    for setting in all_settings().values():
        assert check(setting, setting.default) == setting.default


@pytest.mark.parametrize("name", [name for name, setting in all_settings().items() if not setting.table])
def test_what_is_shown_can_be_typed(name: str) -> None:
    setting = all_settings()[name]
    assert parse(setting, text_of(setting.default)) == setting.default


def test_the_stronger_source_wins(path: Path) -> None:
    path.write_text('kv = "ring"\ndevice = "cpu"\ntop_k = 5\ndtype = "f32"\n')
    environ = {"GLASSCHAT_KV": "paged", "GLASSCHAT_TOP_K": "6", "GLASSCHAT_HISTORY": "off", "HOME": "/"}
    sources = read_sources(path, environ, {"top_k": 7, "json": True})
    settings = sources.settings
    assert (settings.dtype, settings.kv, settings.top_k, settings.history) == ("f32", "paged", 7, False)
    names = ("device", "kv", "top_k", "min_p")
    assert [sources.origin(name) for name in names] == ["the file", "GLASSCHAT_KV", "a flag", "default"]
    assert sources.notices == ()
    assert "min_p" not in sources.given


def test_a_change_is_saved_and_stronger_than_what_this_run_began_with(path: Path) -> None:
    path.write_text('device = "cpu"\n')
    sources = read_sources(path, {"GLASSCHAT_KV": "paged"}, {"kv": "ring"})
    sources, notice = sources.changed("kv", "tiered")
    assert (sources.value("kv"), sources.origin("kv"), notice) == ("tiered", "the file", "")
    assert path.read_text() == 'device = "cpu"\nkv = "tiered"\n'
    sources, _ = sources.changed("kv", None)
    assert (sources.value("kv"), sources.origin("kv")) == ("auto", "default")
    # What only this run was told is not written.
    assert path.read_text() == 'device = "cpu"\n'


def test_no_color_asks_for_the_theme_without_colours_of_its_own(path: Path) -> None:
    path.write_text('theme = "nord"\n')
    sources = read_sources(path, {"NO_COLOR": "1"}, {})
    assert (sources.settings.theme, sources.origin("theme"), sources.no_color) == ("glass-16", "NO_COLOR", True)
    assert not read_sources(path, {"NO_COLOR": ""}, {}).no_color
    assert read_sources(path, {"NO_COLOR": "1", "GLASSCHAT_THEME": "x"}, {}).settings.theme == "x"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("top_p = 0", "top_p is 0, expected a number above 0, up to 1; the default, 0.95, is used."),
        ("top_p = nan", "top_p is nan, expected a number above 0"),
        ("temperature = true", "temperature is True, expected a number from 0 on"),
        ("top_k = 4.5", "top_k is 4.5, expected a whole number from 0 on"),
        ("history = 1", "history is 1, expected true or false"),
        ("context = 0", "context is 0, expected a whole number from 1 on; it is ignored."),
        ('kv = "heap"', "kv is 'heap', expected one of auto, contiguous"),
        ("model = 3", "model is 3, expected text"),
        ('open_panels = "kv"', "open_panels is 'kv', expected a list of names"),
        ("keys = 1", "keys is 1, expected a table"),
        ("keys.chat.kv = 1", "keys.chat.kv is 1, expected text"),
        ("panel_sizes = { kv = 1 }", "panel_sizes.kv is 1, expected a whole number from 3 to 400"),
        ("temprature = 1", "temprature is not a setting; it is left as it is."),
        (r'kv = "\u001b[2J"', r"kv is '\x1b[2J', expected"),
    ],
)
def test_a_bad_line_is_told_in_one_line_and_the_rest_kept(path: Path, line: str, said: str) -> None:
    path.write_text(f'theme = "nord"\n{line}\n')
    sources = read_sources(path, {}, {})
    assert sources.settings == Settings(theme="nord")
    (notice,) = sources.notices
    assert f"In {path}, {said}" in notice
    assert "\n" not in notice


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("GLASSCHAT_TOP_P", "2", "GLASSCHAT_TOP_P is '2', expected a number above 0, up to 1; it is ignored."),
        ("GLASSCHAT_REDUCED_MOTION", "maybe", "expected true or false"),
        ("GLASSCHAT_SEED", "1e5", "expected a whole number"),
        ("GLASSCHAT_KEYS", "chat.kv", "GLASSCHAT_KEYS is not the name of a setting"),
        ("GLASSCHAT_KW", "paged", "GLASSCHAT_KW is not the name of a setting"),
    ],
)
def test_a_bad_variable_is_told_and_ignored(path: Path, variable: str, text: str, said: str) -> None:
    path.write_text("top_p = 0.5\n")
    sources = read_sources(path, {variable: text}, {})
    assert sources.settings == Settings(top_p=0.5)
    (notice,) = sources.notices
    assert said in notice


def test_a_damaged_file_gives_the_defaults_and_is_not_touched(path: Path) -> None:
    for damaged in (b"model = \xff\xfe", b'theme = "nord\n'):
        path.write_bytes(damaged)
        settings, notice = load_settings(path)
        assert settings == Settings()
        assert str(path) in notice
        assert "which stays as it was" in save_settings(Settings(model="a"), path)
        assert path.read_bytes() == damaged


def test_what_is_not_ours_in_the_file_stays(path: Path) -> None:
    path.write_text(HAND_WRITTEN)
    path.chmod(0o640)
    assert load_settings(path)[0] == Settings(theme="nord", keys={"chat.kv": "f7"})
    assert save_values({"theme": "glass", "keys.chat.kv": "f8"}, path) == ""
    assert path.read_text() == HAND_WRITTEN.replace("nord", "glass").replace("f7", "f8")
    assert path.stat().st_mode & 0o777 == 0o640
    assert save_values({"keys.chat.kv": None, "keys.app.quit": "f10"}, path) == ""
    assert load_settings(path)[0].keys == {"app.quit": "f10"}
    assert "# mine" in path.read_text() and "2]" in path.read_text()


def test_a_link_to_the_file_stays_a_link(path: Path, tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    path.symlink_to(tmp_path / "dotfiles" / "glasschat.toml")
    assert save_settings(Settings(model="a"), path) == ""
    assert path.is_symlink()
    assert load_settings(path)[0].model == "a"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path.write_text(HAND_WRITTEN)
    monkeypatch.setattr(os, call, full)
    notice = save_values({"theme": "glass"}, path)
    assert "No space left" in notice and str(path) in notice
    assert path.read_text() == HAND_WRITTEN
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sources, notice = Sources(tmp_path / "file" / "settings.toml").changed("kv", "ring")
    assert "could not be saved" in notice and "Errno" not in notice
    # It holds for this run.
    assert sources.settings.kv == "ring"


def test_a_models_path_is_kept_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.gguf").write_text("")
    assert with_model(Settings(), "a.gguf").model == str(tmp_path / "a.gguf")
    assert with_model(Settings(), "org/repo").model == "org/repo"


@pytest.mark.parametrize(
    ("argument", "said", "value"),
    [
        ("", "top_k 5 (the file)", 5),
        ("top_k", "top_k is 5, from the file. Only so many", 5),
        ("seed", "seed is not set, from the defaults", 5),
        ("top_k 9", "top_k is set; it works with the next reply.", 9),
        ("top_k -1", "top_k stays 5: expected a whole number from 0 on; found -1.", 5),
        ("top_k default", "top_k is set", 40),
        ("tp_k 9", "There is no setting tp_k. Some there are: top_k", 5),
    ],
)
def test_set(path: Path, argument: str, said: str, value: int) -> None:
    path.write_text("top_k = 5\n")
    sources = read_sources(path, {}, {})

    def change(name: str, value: Any) -> str:
        nonlocal sources
        sources, notice = sources.changed(name, value)
        return notice

    assert said in run_set(argument, all_settings(), sources, change)
    assert sources.value("top_k") == value
