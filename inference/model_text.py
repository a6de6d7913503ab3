"""What a model needs in order to read and write text, from a GGUF file or a model folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from inference.added_tokens import AddedTokens
from inference.chat_template import ChatTemplate
from inference.errors import BadModelFile, UnsupportedModel
from inference.formats.gguf import MetaValue
from inference.formats.json_files import read_file, read_json
from inference.stop_tokens import StopToken
from inference.thinking import ThinkingMarks, find_thinking
from inference.tokenizer import Tokenizer

TEMPLATE_SOURCE = "the chat template"


@dataclass(frozen=True)
class ModelText:
    """The tokenizer (which knows all stop tokens), the chat template, and how thoughts are marked, if they are.

    `notices` say what is done differently from what a person would expect.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    thinking: ThinkingMarks | None
    notices: tuple[str, ...]


def text_from_gguf(path: Path, metadata: Mapping[str, MetaValue], cache_folder: Path | None = None) -> ModelText:
    """Reads a GGUF file's `tokenizer` keys; `path` is for messages. See Tokenizer.from_gguf for `cache_folder`.

    Raises UnsupportedModel, BadModelFile and BadTemplate, naming the file.
    """
    with _named(path):
        tokenizer = Tokenizer.from_gguf(metadata, cache_folder)
    templates = {
        name: str(metadata[key])
        for name, key in (("default", "tokenizer.chat_template"), ("tool_use", "tokenizer.chat_template.tool_use"))
        if metadata.get(key)
    }
    return _assemble(tokenizer, templates, path.name, path.name)


def text_from_folder(folder: Path) -> ModelText:
    """Reads tokenizer.json and the files beside it.

    Raises ModelNotFound, UnsupportedModel, BadModelFile and BadTemplate, naming the file.
    """
    origin, templates = _folder_templates(folder)
    return _assemble(Tokenizer.from_folder(folder), templates, f"{folder.name}/{origin}", folder.name)


def _folder_templates(folder: Path) -> tuple[str, dict[str, str]]:
    """The file that has the templates, and these by name. A file of its own counts before tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    if (contents := read_file(path)) is not None:
        try:
            return path.name, {"default": contents.decode()}
        except UnicodeDecodeError as error:
            raise BadModelFile(f"{path}: is not UTF-8 text ({error}); fetch the file again") from None
    for name in ("tokenizer_config.json", "chat_template.json"):
        if value := read_json(folder / name).get("chat_template"):
            return name, _by_name(folder / name, value)
    return "", {}


def _by_name(path: Path, value: object) -> dict[str, str]:
    """One template, or a list of named ones."""
    match value:
        case str():
            return {"default": value}
        case [*entries]:
            named = {}
            for entry in entries:
                match entry:
                    case {"name": str(name), "template": str(source)}:
                        named[name] = source
                    case _:
                        raise BadModelFile(f"{path}: chat_template has an entry without a name and a template")
            return named
    raise BadModelFile(f"{path}: chat_template is a {type(value).__name__}, expected a text or a list of named texts")


def _assemble(tokenizer: Tokenizer, templates: Mapping[str, str], origin: str, model: str) -> ModelText:
    """`origin` is the file that the templates are from, `model` the file or folder that was opened."""
    notices: list[str] = []
    if templates:
        source = templates.get("default") or next(iter(templates.values()))
        template = ChatTemplate(source, tokenizer.vocabulary.named, templates.get("tool_use"), origin)
        notices += template.notices
    else:
        bos = tokenizer.vocabulary.named.get("bos_token", "") if tokenizer.add_bos else ""
        template = ChatTemplate.plain(bos)
        notices.append(
            f"{model} has no chat template (it is a base model): messages are joined as plain text, "
            "which the model continues"
        )
    tokenizer = tokenizer.with_stops(_with_end_of_turn(tokenizer, template))
    return ModelText(tokenizer, template, find_thinking(template, tokenizer.vocabulary), tuple(notices))


def _with_end_of_turn(tokenizer: Tokenizer, template: ChatTemplate) -> tuple[StopToken, ...]:
    """The stop tokens of the files and the one that the template writes after the assistant's words."""
    stops = {stop.id: stop for stop in tokenizer.vocabulary.stops}
    vocabulary = tokenizer.vocabulary
    added = {text: i for text, i in (vocabulary.control | vocabulary.user_defined).items() if text.strip()}
    first = next(AddedTokens(added).split(template.after_answer().lstrip()), None)
    if isinstance(first, int):
        known = stops.get(first, StopToken(first, tokenizer.token_text(first), ()))
        stops[first] = replace(known, sources=(*known.sources, TEMPLATE_SOURCE))
    return tuple(stops[i] for i in sorted(stops))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Puts the file's name before the messages of errors."""
    try:
        yield
    except (BadModelFile, UnsupportedModel) as error:
        raise type(error)(f"{path.name}: {error}") from None
