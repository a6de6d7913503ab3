"""Where a model's chat template, stop tokens and notices come from."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from inference.errors import BadModelFile, BadTemplate
from inference.formats.gguf import MetaValue, open_gguf
from inference.model_text import text_from_folder, text_from_gguf

TINY = Path(__file__).parents[1] / "data" / "tiny"
USER = [{"role": "user", "content": "Hi"}]
TOOL = [{"name": "t"}]
NAMED = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]


def folder_with(folder: Path, config: dict[str, Any], **files: str) -> Path:
    """The tiny llama's tokenizer, with `config` in place of the template in tokenizer_config.json, and more files."""
    folder.mkdir(exist_ok=True)
    shutil.copy(TINY / "llama" / "tokenizer.json", folder)
    own = json.loads((TINY / "llama" / "tokenizer_config.json").read_text())
    del own["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(own | config))
    for name, contents in files.items():
        (folder / name.replace("__", ".")).write_text(contents)
    return folder


def llama_gguf() -> tuple[Path, dict[str, MetaValue]]:
    path = TINY / "llama" / "gguf" / "model-f16.gguf"
    return path, dict(open_gguf(path).metadata)


@pytest.mark.parametrize(
    ("config", "files", "plain", "tools"),
    [
        ({"chat_template": "config"}, {}, "config", "config"),
        ({"chat_template": NAMED}, {}, "plain", "with tools"),
        ({"chat_template": NAMED[1:]}, {}, "with tools", "with tools"),
        ({"chat_template": "config"}, {"chat_template__jinja": "own file"}, "own file", "own file"),
        ({}, {"chat_template__json": '{"chat_template": "older"}'}, "older", "older"),
        ({"chat_template": "config"}, {"chat_template__json": '{"chat_template": "older"}'}, "config", "config"),
    ],
)
def test_templates_of_a_folder(
    tmp_path: Path, config: dict[str, Any], files: dict[str, str], plain: str, tools: str
) -> None:
    template = text_from_folder(folder_with(tmp_path / "m", config, **files)).template
    assert (template.render(USER), template.render(USER, tools=TOOL)) == (plain, tools)


def test_templates_of_a_gguf_file() -> None:
    path, metadata = llama_gguf()
    metadata["tokenizer.chat_template.tool_use"] = "with tools"
    template = text_from_gguf(path, metadata).template
    assert template.render(USER).startswith("<|im_start|>user\nHi")
    assert template.render(USER, tools=TOOL) == "with tools"


def test_special_tokens_that_templates_name(tmp_path: Path) -> None:
    source = "{{ bos_token }} {{ eos_token }} {{ pad_token }} {{ unk_token is defined }}"
    expected = "<|begin_of_text|> <|im_end|> <|endoftext|> False"
    assert text_from_folder(folder_with(tmp_path / "m", {"chat_template": source})).template.render(USER) == expected
    path, metadata = llama_gguf()
    assert text_from_gguf(path, metadata | {"tokenizer.chat_template": source}).template.render(USER) == expected


def test_a_model_without_a_template(tmp_path: Path) -> None:
    path, metadata = llama_gguf()
    del metadata["tokenizer.chat_template"]
    for text, name in (
        (text_from_folder(folder_with(tmp_path / "m", {})), "m"),
        (text_from_gguf(path, metadata), path.name),
    ):
        (notice,) = text.notices
        assert notice.startswith(f"{name} has no chat template (it is a base model)")
        assert text.template.render(USER) == "<|begin_of_text|>Hi"


@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        ("{{ m.content }}<s>x", True),
        ("{{ m.content }} \n<s>\n", True),
        ("{{ m.content }}.<s>", False),
        ("{{ m.content }}", False),
        ("{{ raise_exception('no') }}", False),
        ("<s>", False),
    ],
)
def test_the_template_s_own_end_of_a_turn(tmp_path: Path, answer: str, ends: bool) -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}U{{ m.content }}{% else %}"
        + answer
        + "{% endif %}{% endfor %}"
    )
    folder = folder_with(tmp_path / "m", {"chat_template": source})
    document = (folder / "tokenizer.json").read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(document.replace("<|im_start|>", "<s>"), encoding="utf-8")
    stops = {stop.text: stop.sources for stop in text_from_folder(folder).tokenizer.vocabulary.stops}
    assert stops.pop("<s>", None) == (("the chat template",) if ends else None)
    assert stops.keys() == {"<|im_end|>", "<|endoftext|>"}


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ("{% if %}", BadTemplate, r"the chat template of m/tokenizer_config\.json cannot be parsed"),
        (3, BadModelFile, r"tokenizer_config\.json: chat_template is a int, expected a text or a list"),
        ([{"name": "default"}], BadModelFile, r"tokenizer_config\.json: chat_template has an entry without a name"),
    ],
)
def test_bad_templates_name_their_file(tmp_path: Path, value: object, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        text_from_folder(folder_with(tmp_path / "m", {"chat_template": value}))


def test_errors_name_the_gguf_file(tmp_path: Path) -> None:
    path, metadata = llama_gguf()
    with pytest.raises(BadModelFile, match=r"^model-f16\.gguf: tokenizer\.ggml\.merges is not"):
        text_from_gguf(path, metadata | {"tokenizer.ggml.merges": 3})
    with pytest.raises(BadTemplate, match=r"of model-f16\.gguf cannot be parsed"):
        text_from_gguf(path, metadata | {"tokenizer.chat_template": "{% if %}"})
    template = text_from_gguf(path, metadata | {"tokenizer.chat_template": "{{ raise_exception('no') }}"}).template
    with pytest.raises(BadTemplate, match=r"of model-f16\.gguf refuses this conversation: no"):
        template.render(USER)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(BadModelFile, match=r"chat_template\.jinja: is not UTF-8"):
        text_from_folder(tmp_path)
