"""Chat templates against llama.cpp's and Transformers' texts and ids, and against text that plays template."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference import chat_template
from inference.chat_template import ChatTemplate, encode_chat, merge_system
from inference.errors import BadTemplate
from inference.formats.gguf import open_gguf
from inference.model_text import text_from_folder, text_from_gguf
from inference.tokenizer import Tokenizer

TINY = Path(__file__).parents[1] / "data" / "tiny"
FAMILIES = sorted(path.parent.name for path in TINY.glob("*/tokenizer.json"))
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
    return ChatTemplate(str(metadata["tokenizer.chat_template"]), tiny_tokenizer(family).vocabulary.named)


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


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_and_ids_equal_transformers(family: str) -> None:
    """Also from GGUF where there is a file. Where Transformers reports an error, the notice tells of it."""
    reference = json.loads((TINY / family / "golden.json").read_text(encoding="utf-8"))
    assert len(reference["chat"]) >= 6
    texts = [text_from_folder(TINY / family)]
    if (path := TINY / family / "gguf" / "model-f16.gguf").exists():
        texts.append(text_from_gguf(path, open_gguf(path).metadata))
    for text in texts:
        refused = [case["error"] for case in reference["chat"] if "error" in case]
        assert len(text.notices) == bool(refused) and all(reason in text.notices[0] for reason in refused)
        for case in reference["chat"]:
            arguments, variables = (case["messages"], case["add_generation_prompt"]), case["kwargs"]
            if "error" not in case:
                assert text.template.render(*arguments, **variables) == case["text"]
                assert encode_chat(text.template, text.tokenizer, *arguments, **variables) == case["ids"]


FRAGMENTS = st.sampled_from(
    ["<|im_start|>", "<|im_end|>", "<|im_", "end|>", "|>", "<", "user\n", " ", "\n", "a", "\U000f0000"]
)


@cache
def tiny_text(kind: str) -> tuple[ChatTemplate, Tokenizer]:
    if kind == "gguf":
        return tiny_template("llama"), tiny_tokenizer("llama")
    text = text_from_folder(TINY / "llama")
    return text.template, text.tokenizer


@pytest.mark.parametrize("kind", ["gguf", "folder"])
@given(texts=st.lists(st.lists(FRAGMENTS, max_size=6).map("".join), min_size=1, max_size=4))
@settings(deadline=None, max_examples=200)
def test_no_text_yields_special_tokens(kind: str, texts: list[str]) -> None:
    template, tokenizer = tiny_text(kind)
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


def test_tokens_not_flagged_special(tmp_path: Path) -> None:
    """They are text in a user's message, and the model's own in the assistant's; white space is always found."""
    document = json.loads((TINY / "qwen3" / "tokenizer.json").read_text(encoding="utf-8"))
    blank = 504
    document["added_tokens"].append({**document["added_tokens"][-1], "id": blank, "content": "\n\n"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = Tokenizer.from_folder(tmp_path)
    think = tokenizer.vocabulary.user_defined["<think>"]
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
    text = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(USER)
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


@pytest.mark.parametrize("family", FAMILIES)
def test_no_name_of_a_token_in_a_message_is_that_token(family: str) -> None:
    text = text_from_folder(TINY / family)
    control = text.tokenizer.vocabulary.control
    added = control | text.tokenizer.vocabulary.user_defined
    spelled = "".join(f"{name} {name}x" for name in added)

    def ids(words: str) -> list[int]:
        messages = [{"role": "user", "content": words}, {"role": "assistant", "content": "".join(control)}]
        return [i for i in encode_chat(text.template, text.tokenizer, messages) if i in added.values()]

    assert ids(spelled) == ids("x")
    assert text.tokenizer.encode(spelled, parse_special=True).count(next(iter(control.values()))) == 2


def test_tools_choose_their_template_and_yield_no_special_tokens() -> None:
    tokenizer = tiny_tokenizer("llama")
    template = ChatTemplate("plain", tool_use="{% for t in tools %}{{ t | tojson }}{% endfor %}{{ style }}")
    tool = {"name": "<|im_end|>", "parameters": {"<|im_start|>": 1, "city": "Rome"}}
    assert template.render(USER, tools=[]) == template.render(USER) == "plain"
    assert template.render(USER, tools=[tool], style="s") == json.dumps(tool) + "s"
    ids = encode_chat(template, tokenizer, USER, tools=[tool], style="s")
    assert not set(ids) & set(tokenizer.vocabulary.control.values())
    assert tokenizer.decode(ids) == json.dumps(tool) + "s"


def test_generation_tags_render_their_body() -> None:
    source = (
        "{% set x = 'a' %}{% for m in messages %}{% generation %}{{ m.content }}{{ x }}\n{% endgeneration %}"
        "{%- generation -%} b {%- endgeneration -%}{% endfor %}"
    )
    assert ChatTemplate(source).render(USER) == "Hia\nb"
    with pytest.raises(BadTemplate, match=r"of f\.jinja cannot be parsed"):
        ChatTemplate("{% generation %}", origin="f.jinja")


LISTED = "{% for m in messages %}"
SYSTEM = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Ho"},
    {"role": "user", "content": "So"},
]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            LISTED + "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}[{{ m.content }}]"
            "{% endfor %}",
            "no system",
        ),
        (LISTED + "{% if m.role != 'system' %}[{{ m.content }}]{% endif %}{% endfor %}", "leaves the text out"),
        (
            LISTED
            + "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
            "[{{ m.content }}]{% endfor %}",
            "alternate",
        ),
    ],
)
def test_system_text_goes_where_the_template_has_room(source: str, reason: str) -> None:
    template = ChatTemplate(source, origin="t.jinja")
    (notice,) = template.notices
    assert reason in notice and "of t.jinja has no place for a system message" in notice
    assert template.render(SYSTEM) == "[Be brief.\n\nHi][Ho][So]"
    assert template.render(SYSTEM[1:]) == "[Hi][Ho][So]"


def test_a_system_message_that_a_template_takes_is_left_alone() -> None:
    template = ChatTemplate(LISTED + "{{ m.role }}:{{ m.content }};{% endfor %}")
    assert template.notices == ()
    assert template.render(SYSTEM[:2]) == "system:Be brief.;user:Hi;"


def test_nothing_is_merged_where_that_would_not_help() -> None:
    template = ChatTemplate("{{ raise_exception('never') }}")
    assert template.notices == ()
    with pytest.raises(BadTemplate, match="never"):
        template.render(SYSTEM)


def test_merging_of_several_and_of_parts() -> None:
    part = {"type": "text", "text": "Hi"}
    messages = [SYSTEM[0], {"role": "system", "content": [{"type": "text", "text": "Be kind."}]}]
    assert merge_system([*messages, {"role": "user", "content": [part]}]) == [
        {"role": "user", "content": [{"type": "text", "text": "Be brief.\n\nBe kind.\n\n"}, part]}
    ]
    assert merge_system(messages) == [{"role": "user", "content": "Be brief.\n\nBe kind."}]
    assert merge_system([{"role": "system", "content": ""}, SYSTEM[1]]) == [SYSTEM[1]]


def test_merged_system_text_yields_no_special_tokens() -> None:
    text = text_from_folder(TINY / "gemma2")
    ids = encode_chat(text.template, text.tokenizer, [{"role": "system", "content": "<end_of_turn>"}, *USER])
    turn = text.tokenizer.vocabulary.control["<end_of_turn>"]
    assert ids.count(turn) == 1 and "user\n<end_of_turn>\n\nHi<end_of_turn>" in text.tokenizer.decode(ids)
