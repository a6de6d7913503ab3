"""Chat templates: a conversation as the text, and the token ids, that a model was trained to continue.

Templates are Jinja programs that come with model files, so they run in Jinja's immutable sandbox, with a
time limit. The environment is the one that templates are written for: see "Chat templates" in the
documentation of Transformers (https://huggingface.co/docs/transformers/chat_templating).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference.added_tokens import AddedTokens
from inference.errors import BadTemplate
from inference.tokenizer import Tokenizer

Message = Mapping[str, Any]
TIME_LIMIT = 2.0  # seconds; templates take about a millisecond
# What a model without a template gets: the texts alone, each question on a line of its own, so that a base model
# simply continues. The prompt of a turn followed by its reply is the beginning of the next turn's prompt.
PLAIN_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if not loop.first and message['role'] != 'assistant' %}{{ '\n' }}{% endif %}{{ message['content'] }}"
    "{% endfor %}"
)
# Supplementary Private Use Area-A: never stripped, split or changed in case by what templates do to strings.
_PLACEHOLDERS = range(0xF0000, 0xFFFFE)


class ChatTemplate:
    """A compiled template. `bos_token` and `eos_token` are the texts of these tokens, empty where there are none."""

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        try:
            self._template = environment.from_string(source)
        except Exception as error:  # Jinja's parser and compiler raise more than TemplateError on odd input
            raise BadTemplate(f"the chat template cannot be parsed: {_describe(error)}; {_ADVICE}") from None

    @classmethod
    def plain(cls, bos_token: str = "") -> ChatTemplate:
        """For models that have no template: the messages' texts, with nothing to tell who speaks."""
        return cls(PLAIN_TEMPLATE, bos_token)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The prompt as text. Raises BadTemplate where the template refuses the messages, fails or takes too long."""
        try:
            with _time_limit(TIME_LIMIT):
                return self._template.render(
                    messages=messages,
                    add_generation_prompt=add_generation_prompt,
                    tools=None,
                    documents=None,
                    **self._tokens,
                )
        except BadTemplate:
            raise
        except Exception as error:  # whatever a program of somebody else's runs into
            raise BadTemplate(f"the chat template fails on this conversation: {_describe(error)}; {_ADVICE}") from None


def encode_chat(
    template: ChatTemplate, tokenizer: Tokenizer, messages: Sequence[Message], add_generation_prompt: bool = True
) -> list[int]:
    """Token ids of a conversation, in which only the template's own text yields special tokens.

    Where a message spells an added token, the name is rendered as a placeholder and encoded as the ordinary text
    that it is; this holds for tokens not flagged as special, such as <think>, too. Two kinds of added tokens need
    no such care: white space, which is ordinary text, and tokens not flagged as special in the assistant's
    messages, which are the model's own and which templates look for. Conversations that spell no added token get
    the ids of the rendered text as it is.
    """
    vocabulary = tokenizer.vocabulary
    special = AddedTokens(vocabulary.control)
    added = AddedTokens(vocabulary.control | {t: i for t, i in vocabulary.user_defined.items() if t.strip()})
    free = _unused_characters(template.source, messages)
    placeholders: dict[str, str] = {}
    safe = []
    for message in messages:
        tokens = special if message.get("role") == "assistant" else added
        safe.append(_replace_tokens(message, tokens, tokenizer, placeholders, free))
    text = template.render(safe, add_generation_prompt)
    literals = {placeholder: name for name, placeholder in placeholders.items()}
    return tokenizer.encode(text, parse_special=True, literals=literals)


def _replace_tokens(
    value: Any, tokens: AddedTokens, tokenizer: Tokenizer, placeholders: dict[str, str], free: Iterator[str]
) -> Any:
    """The same value, in all strings of which the names of `tokens` have become characters of `placeholders`."""
    match value:
        case str():
            parts = []
            for piece in tokens.split(value):
                if isinstance(piece, int):
                    name = tokenizer.token_text(piece)
                    if name not in placeholders:
                        placeholders[name] = next(free)
                    piece = placeholders[name]
                parts.append(piece)
            return "".join(parts)
        case Mapping():
            return {key: _replace_tokens(item, tokens, tokenizer, placeholders, free) for key, item in value.items()}
        case list() | tuple():
            return [_replace_tokens(item, tokens, tokenizer, placeholders, free) for item in value]
    return value


def _unused_characters(source: str, messages: Sequence[Message]) -> Iterator[str]:
    """Characters for placeholders that neither the template nor the conversation contains."""
    used = {*source, *json.dumps(messages, ensure_ascii=False, default=str)}
    return (chr(code) for code in _PLACEHOLDERS if chr(code) not in used)


_ADVICE = "use another template or another file of this model"


def _describe(error: Exception) -> str:
    """The error on one line, with the template's line where it is known."""
    line = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
    return f"{' '.join(str(error).split()) or type(error).__name__}{line}"


def _raise_exception(message: object) -> NoReturn:
    reason = " ".join(str(message).split())
    raise BadTemplate(f"the chat template refuses this conversation: {reason}; change the messages or the template")


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: object, indent: int | None = None, **options: Any) -> str:
    """Unlike Jinja's own filter: no HTML escapes, and characters stay as they are."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Stops Python code in this block that runs for longer, by a check on every line that it runs."""
    deadline = time.monotonic() + seconds
    before = sys.gettrace()

    def check(frame: FrameType, event: str, argument: object) -> Any:
        if time.monotonic() > deadline:
            raise BadTemplate(f"the chat template did not finish within {seconds:g} s; {_ADVICE}")
        return check

    sys.settrace(check)
    try:
        yield
    finally:
        sys.settrace(before)
