"""The Jinja environment that chat templates are written for, with a time limit.

Templates are programs that come with model files, so they run in Jinja's immutable sandbox. What is added to it
is what Transformers adds (https://huggingface.co/docs/transformers/chat_templating).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateRefusal(Exception):
    """Raised by a template that calls raise_exception."""


class TemplateTimeout(Exception):
    """Raised in a template that runs for too long."""


class GenerationTag(Extension):
    """`{% generation %}` marks what the model wrote, for training: here its body is rendered as it is."""

    tags: set[str] = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """The body, in a scope of its own as in Transformers."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def make_environment() -> ImmutableSandboxedEnvironment:
    """A sandbox with the whitespace rules, filters and functions that templates expect."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(" ".join(str(message).split()))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: object, indent: int | None = None, **options: Any) -> str:
    """Unlike Jinja's own filter: no HTML escapes, and characters stay as they are."""
    return json.dumps(value, **({"ensure_ascii": False} | options), indent=indent)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Stops Python code in this block that runs for longer, by a check on every line that it runs."""
    deadline = time.monotonic() + seconds
    before = sys.gettrace()

    def check(frame: FrameType, event: str, argument: object) -> Any:
        if time.monotonic() > deadline:
            raise TemplateTimeout(f"did not finish within {seconds:g} s")
        return check

    sys.settrace(check)
    try:
        yield
    finally:
        sys.settrace(before)
