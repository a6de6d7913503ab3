"""Chat templates: a conversation as the text, and the token ids, that a model was trained to continue."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2

from inference.added_tokens import AddedTokens
from inference.errors import BadTemplate
from inference.template_environment import TemplateRefusal, TemplateTimeout, make_environment, time_limit
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
# What the trial conversations say: words that no template contains by itself.
_SYSTEM, _QUESTION, _ANSWER = "quartz system trial", "quartz question trial", "quartz answer trial"
_ADVICE = "use another template or another file of this model"


class ChatTemplate:
    """A compiled template.

    `tokens` holds the texts of special tokens by the names that templates use (bos_token, eos_token, ...). `tool_use`
    is the source that takes the place of `source` where tools are given. `origin` is the file, for messages.
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str] | None = None,
        tool_use: str | None = None,
        origin: str = "",
    ) -> None:
        self.source = source
        self.origin = origin
        self._tool_use_source = tool_use or source
        self._tokens = {"bos_token": "", "eos_token": ""} | dict(tokens or {})
        self._title = f"the chat template of {origin}" if origin else "the chat template"
        environment = make_environment()
        try:
            self._template = environment.from_string(source)
            self._tool_use = environment.from_string(tool_use) if tool_use else self._template
        except Exception as error:  # Jinja's parser and compiler raise more than TemplateError on odd input
            raise BadTemplate(f"{self._title} cannot be parsed: {_describe(error)}; {_ADVICE}") from None

    @classmethod
    def plain(cls, bos_token: str = "") -> ChatTemplate:
        """For models that have no template: the messages' texts, with nothing to tell who speaks."""
        return cls(PLAIN_TEMPLATE, {"bos_token": bos_token})

    @property
    def sources(self) -> str:
        """The text of the template and of its variant for tools."""
        return self.source + self._tool_use_source

    @property
    def notices(self) -> tuple[str, ...]:
        """What is done differently from what the messages say, in words for a person."""
        if self._system_refusal is None:
            return ()
        return (
            f"{self._title} has no place for a system message ({self._system_refusal}): "
            "its text is put at the beginning of the first user message",
        )

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The prompt as text. `variables` are what the template knows besides, such as tools or enable_thinking.

        System messages are merged into the first user message where the template has no place for them; `notices`
        tells. Raises BadTemplate where the template refuses the messages, fails or takes too long.
        """
        if any(message.get("role") == "system" for message in messages) and self._system_refusal is not None:
            messages = merge_system(messages)
        try:
            return self._run(messages, add_generation_prompt, variables)
        except TemplateRefusal as error:
            raise BadTemplate(
                f"{self._title} refuses this conversation: {error}; change the messages or the template"
            ) from None
        except TemplateTimeout as error:
            raise BadTemplate(f"{self._title} {error}; {_ADVICE}") from None
        except Exception as error:  # whatever a program of somebody else's runs into
            raise BadTemplate(f"{self._title} fails on this conversation: {_describe(error)}; {_ADVICE}") from None

    def after_answer(self) -> str:
        """What the template writes after an assistant's message that ends a conversation; empty where it refuses."""
        messages = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
        _, found, rest = self._try(messages).rpartition(_ANSWER)
        return rest if found else ""

    @cached_property
    def _system_refusal(self) -> str | None:
        """Why system messages have to be merged; None where they need not be, or where that would not help."""
        question = {"role": "user", "content": _QUESTION}
        try:
            if _SYSTEM in self._run([{"role": "system", "content": _SYSTEM}, question], True, {}):
                return None
            reason = "it leaves the text out"
        except Exception as error:
            reason = _describe(error)
        merged = self._try(merge_system([{"role": "system", "content": _SYSTEM}, question]), True)
        return reason if _SYSTEM in merged else None

    def _try(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        """The text of a trial conversation; empty where the template fails on it."""
        try:
            return self._run(messages, add_generation_prompt, {})
        except Exception:
            return ""

    def _run(self, messages: Sequence[Message], add_generation_prompt: bool, variables: Mapping[str, Any]) -> str:
        template = self._tool_use if variables.get("tools") else self._template
        known = {"tools": None, "documents": None, **self._tokens, **variables}
        with time_limit(TIME_LIMIT):
            return template.render(known, messages=messages, add_generation_prompt=add_generation_prompt)


def merge_system(messages: Sequence[Message]) -> list[Message]:
    """The conversation without system messages: their texts begin the first user message, before an empty line.

    Where there is no user message, one is made of them.
    """
    texts = [text for m in messages if m.get("role") == "system" and (text := _text_of(m.get("content")))]
    others = [message for message in messages if message.get("role") != "system"]
    if not texts:
        return others
    system = "\n\n".join(texts)
    for i, message in enumerate(others):
        if message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, list | tuple):
                content = [{"type": "text", "text": f"{system}\n\n"}, *content]
            else:
                content = f"{system}\n\n{content}"
            others[i] = {**message, "content": content}
            return others
    return [{"role": "user", "content": system}, *others]


def _text_of(content: object) -> str:
    """The text of a message whose content is a string or a list of parts."""
    if isinstance(content, list | tuple):
        return "\n\n".join(str(part["text"]) for part in content if isinstance(part, Mapping) and "text" in part)
    return "" if content is None else str(content)


def encode_chat(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    add_generation_prompt: bool = True,
    begun: str = "",
    **variables: Any,
) -> list[int]:
    """Token ids of a conversation, in which only the template's own text yields special tokens.

    `begun` is what the model has already written of the reply that comes next.

    Where a message (or one of `variables`, such as tools) spells an added token, the name is rendered as a
    placeholder and encoded as the ordinary text that it is; this holds for tokens not flagged as special, such as
    <think>, too. Two kinds of added tokens need no such care: white space, which is ordinary text, and tokens not
    flagged as special in the assistant's messages, which are the model's own and which templates look for.
    Conversations that spell no added token get the ids of the rendered text as it is.
    """
    vocabulary = tokenizer.vocabulary
    special = AddedTokens(vocabulary.control)
    added = AddedTokens(vocabulary.control | {t: i for t, i in vocabulary.user_defined.items() if t.strip()})
    free = _unused_characters(template.sources, [messages, begun, variables])
    placeholders: dict[str, str] = {}
    safe = []
    for message in messages:
        tokens = special if message.get("role") == "assistant" else added
        safe.append(_replace_tokens(message, tokens, tokenizer, placeholders, free))
    safe_variables = _replace_tokens(variables, added, tokenizer, placeholders, free)
    text = template.render(safe, add_generation_prompt, **safe_variables)
    text += _replace_tokens(begun, special, tokenizer, placeholders, free)
    literals = {placeholder: name for name, placeholder in placeholders.items()}
    return tokenizer.encode(text, parse_special=True, literals=literals)


def _replace_tokens(
    value: Any, tokens: AddedTokens, tokenizer: Tokenizer, placeholders: dict[str, str], free: Iterator[str]
) -> Any:
    """The same value, in all strings of which the names of `tokens` have become characters of `placeholders`.

    Keys that are plain words stay as they are: templates look values up by them.
    """

    def replaced(value: Any) -> Any:
        match value:
            case str():
                return "".join(piece if isinstance(piece, str) else placeholder(piece) for piece in tokens.split(value))
            case Mapping():
                return {key if _is_word(key) else replaced(key): replaced(item) for key, item in value.items()}
            case list() | tuple():
                return [replaced(item) for item in value]
        return value

    def placeholder(token_id: int) -> str:
        name = tokenizer.token_text(token_id)
        if name not in placeholders:
            placeholders[name] = next(free)
        return placeholders[name]

    return replaced(value)


def _is_word(key: object) -> bool:
    return isinstance(key, str) and key.isidentifier()


def _unused_characters(source: str, values: object) -> Iterator[str]:
    """Characters for placeholders that neither the template nor the values contain."""
    used = {*source, *json.dumps(values, ensure_ascii=False, default=str)}
    return (chr(code) for code in _PLACEHOLDERS if chr(code) not in used)


def _describe(error: Exception) -> str:
    """The error on one line, with the template's line where it is known."""
    line = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
    return f"{' '.join(str(error).split()) or type(error).__name__}{line}"
