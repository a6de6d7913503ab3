from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from app.settings import Settings, load_settings, save_settings, with_model


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_what_is_saved_is_loaded(tmp_path_factory: object, name: str) -> None:
    path = tmp_path_factory.mktemp("settings") / "deep" / "settings.toml"  # type: ignore[attr-defined]
    assert save_settings(Settings(model=name, theme="glass-light"), path) == ""
    assert load_settings(path) == (Settings(model=name, theme="glass-light"), "")
    assert [file.name for file in path.parent.iterdir()] == ["settings.toml"]


def test_no_file_gives_the_defaults(tmp_path: Path) -> None:
    assert load_settings(tmp_path / "none.toml") == (Settings(), "")


def test_a_damaged_file_gives_the_defaults_and_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(b"model = \xff\xfe")
    settings, notice = load_settings(path)
    assert settings == Settings()
    assert str(path) in notice


def test_a_wrong_type_is_told_and_the_rest_kept(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text('model = 3\ntheme = "nord"\nunknown = 1\n')
    settings, notice = load_settings(path)
    assert settings == Settings(theme="nord")
    assert "model" in notice


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "could not be saved" in save_settings(Settings(model="a"), tmp_path / "file" / "settings.toml")


def test_a_models_path_is_kept_absolute(tmp_path: Path, monkeypatch: object) -> None:
    monkeypatch.chdir(tmp_path)  # type: ignore[attr-defined]
    (tmp_path / "a.gguf").write_text("")
    assert with_model(Settings(), "a.gguf").model == str(tmp_path / "a.gguf")
    assert with_model(Settings(), "org/repo").model == "org/repo"
