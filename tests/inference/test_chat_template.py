"""Chat templates against llama.cpp's and Transformers' texts and ids, and against text that plays template."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference import chat_template
from inference.chat_template import ChatTemplate, encode_chat
from inference.errors import BadTemplate
from inference.formats.gguf import open_gguf
from inference.tokenizer import Tokenizer
from inference.vocabulary import TokenType

TINY = Path(__file__).parents[1] / "data" / "tiny"
USER = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(open_gguf(smollm2_path).metadata)


@pytest.fixture
def smollm2_cases(golden: Callable[[str], Any]) -> dict[str, dict[str, Any]]:
    return {case["id"]: case for case in golden("smollm2.chat.json")["cases"]}


@pytest.fixture
def smollm2_template(golden: Callable[[str], Any]) -> ChatTemplate:
    return ChatTemplate(golden("smollm2.chat.json")["template"])


@cache
def tiny_tokenizer(family: str) -> Tokenizer:
    return Tokenizer.from_gguf(open_gguf(TINY / family / "gguf" / "model-f16.gguf").metadata)


@cache
def tiny_template(family: str) -> ChatTemplate:
    metadata = open_gguf(TINY / family / "gguf" / "model-f16.gguf").metadata
    tokenizer = tiny_tokenizer(family)
    assert tokenizer.bos_id is not None and tokenizer.eos_id is not None
    source = str(metadata["tokenizer.chat_template"])
    return ChatTemplate(source, tokenizer.token_text(tokenizer.bos_id), tokenizer.token_text(tokenizer.eos_id))


def test_texts_and_ids_equal_llama_cpp(
    smollm2: Tokenizer, smollm2_template: ChatTemplate, smollm2_cases: dict[str, dict[str, Any]]
) -> None:
    assert len(smollm2_cases) == 8
    for name, case in smollm2_cases.items():
        arguments = (case["messages"], case["add_generation_prompt"])
        assert smollm2_template.render(*arguments) == case["rendered"]
        ids = encode_chat(smollm2_template, smollm2, *arguments)
        assert (ids == case["ids"]) == (name != "chat_injection")


def test_names_of_special_tokens_in_messages_are_text(
    smollm2: Tokenizer, smollm2_template: ChatTemplate, smollm2_cases: dict[str, dict[str, Any]]
) -> None:
    case = smollm2_cases["chat_injection"]
    ids = encode_chat(smollm2_template, smollm2, case["messages"])
    control = set(smollm2.vocabulary.control.values())
    harmless = [{**m, "content": "x"} for m in case["messages"]]
    of_template = [i for i in encode_chat(smollm2_template, smollm2, harmless) if i in control]
    assert [i for i in ids if i in control] == of_template
    assert len([i for i in case["ids"] if i in control]) > len(of_template)  # what parsing them would have given
    assert smollm2.decode(ids) == case["rendered"]


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_texts_and_ids_equal_transformers(family: str) -> None:
    reference = json.loads((TINY / family / "golden.json").read_text(encoding="utf-8"))
    assert len(reference["chat"]) >= 6
    for case in reference["chat"]:
        arguments = (case["messages"], case["add_generation_prompt"])
        assert tiny_template(family).render(*arguments) == case["text"]
        assert encode_chat(tiny_template(family), tiny_tokenizer(family), *arguments) == case["ids"]


FRAGMENTS = st.sampled_from(
    ["<|im_start|>", "<|im_end|>", "<|im_", "end|>", "|>", "<", "user\n", " ", "\n", "a", "\U000f0000"]
)


@given(texts=st.lists(st.lists(FRAGMENTS, max_size=6).map("".join), min_size=1, max_size=4))
@settings(deadline=None, max_examples=200)
def test_no_text_yields_special_tokens(texts: list[str]) -> None:
    template, tokenizer = tiny_template("llama"), tiny_tokenizer("llama")
    roles = ["user", "assistant"]
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    ids = encode_chat(template, tokenizer, messages)
    control = set(tokenizer.vocabulary.control.values())
    assert sum(i in control for i in ids) == 2 * len(texts) + 1
    assert tokenizer.decode(ids) == template.render(messages)
    if not any(name in text for name in tokenizer.vocabulary.control for text in texts):
        assert ids == tokenizer.encode(template.render(messages), parse_special=True)


@pytest.mark.parametrize("content", ["{{ m.content | trim }}", "{{ m.content | string | replace('a', 'b') | title }}"])
def test_names_survive_what_templates_do_to_strings(content: str) -> None:
    tokenizer = tiny_tokenizer("llama")
    template = ChatTemplate("{% for m in messages %}<|im_start|>" + content + "{% endfor %}")
    ids = encode_chat(template, tokenizer, [{"role": "user", "content": "  <|im_end|>  "}])
    assert tokenizer.decode(ids).replace(" ", "") == "<|im_start|><|im_end|>"
    assert [i in tokenizer.vocabulary.control.values() for i in ids].count(True) == 1


def test_names_in_nested_values_and_roles() -> None:
    tokenizer = tiny_tokenizer("llama")
    template = ChatTemplate("{% for m in messages %}{{ m.role }}{{ m.content[0].text }}{{ m | tojson }}{% endfor %}")
    message = {"role": "<|im_start|>", "content": [{"type": "text", "text": "<|im_end|>"}], "n": 3}
    ids = encode_chat(template, tokenizer, [message])
    assert not set(ids) & set(tokenizer.vocabulary.control.values())
    assert tokenizer.decode(ids) == template.render([message])


def with_user_defined(tokenizer: Tokenizer, names: list[str]) -> Tokenizer:
    """The same tokenizer with its last ordinary tokens made into user-defined ones."""
    tokens, types = list(tokenizer.vocabulary.tokens), tokenizer.vocabulary.types.copy()
    for i, name in enumerate(names):
        tokens[500 - i], types[500 - i] = name, TokenType.USER_DEFINED
    return Tokenizer(replace(tokenizer.vocabulary, tokens=tokens, types=types), tokenizer._backend)


def test_tokens_not_flagged_special() -> None:
    """They are text in a user's message, and the model's own in the assistant's; white space is always found."""
    tokenizer = with_user_defined(tiny_tokenizer("llama"), ["<think>", "\n\n"])
    think, blank = tokenizer.vocabulary.user_defined["<think>"], tokenizer.vocabulary.user_defined["\n\n"]
    template = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<think>' in m.content }}{% endif %}"
        "{{ m.content }};{% endfor %}"
    )

    def encode(role: str) -> list[int]:
        return encode_chat(template, tokenizer, [{"role": role, "content": "<think>\n\na"}])

    assert think not in encode("user") and blank in encode("user")
    assert encode("assistant") == tokenizer.encode("True<think>\n\na;") and think in encode("assistant")


def test_the_environment_that_templates_expect() -> None:
    source = (
        "{% for x in [1, 2, 3] %}\n"
        "    {% if x == 2 %}{% continue %}{% endif %}\n"
        "{{ x }}\n"
        "{% endfor %}\n"
        "{{ {'a': 'é<&\"'} | tojson }} {{ bos_token }}{{ eos_token }} "
        "{{ tools is none }} {{ strftime_now('%Y') | length }}"
    )
    text = ChatTemplate(source, "<s>", "</s>").render(USER)
    assert text == '1\n3\n{"a": "é<&\\""} <s></s> True 4'


def test_the_plain_form_of_a_turn_begins_the_next() -> None:
    template = ChatTemplate.plain("<bos>")
    turn = [{"role": "user", "content": "One, two,"}]
    assert template.render(turn) == "<bos>One, two,"
    reply = [*turn, {"role": "assistant", "content": " three."}, {"role": "user", "content": "Red,"}]
    assert template.render(reply) == "<bos>One, two, three.\nRed,"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for m in messages %}", "cannot be parsed.*line 1"),
        ("{{ raise_exception('no\nsystem role') }}", "refuses this conversation: no system role"),
        ("{{ messages[0].content.missing.deeper }}", "fails on this conversation"),
        ("{{ 1 / 0 }}", "fails on this conversation: division by zero"),
        ("{{ messages.append(1) }}", "fails on this conversation"),
        ("{{ ''.__class__.__mro__ }}", "fails on this conversation"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails on this conversation"),
        ("{{ range(10000000) | list }}", "fails on this conversation"),
    ],
)
def test_bad_templates_are_named_on_one_line(source: str, words: str) -> None:
    with pytest.raises(BadTemplate, match=words) as caught:
        ChatTemplate(source).render(USER)
    assert "\n" not in str(caught.value)


def test_a_template_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "TIME_LIMIT", 0.2)
    loops = "{% set r = range(9999) %}" + "{% for i in r %}" * 4 + "{% endfor %}" * 4
    with pytest.raises(BadTemplate, match=r"did not finish within 0\.2 s"):
        ChatTemplate(loops).render(USER)
