"""Thoughts told from answers, however the reply is cut into pieces."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.chat_template import ChatTemplate
from inference.model_text import text_from_folder
from inference.thinking import HARMONY, KNOWN_MARKS, ThinkingMarks, ThoughtSplitter, find_thinking

TINY = Path(__file__).parents[1] / "data" / "tiny"
THINK = KNOWN_MARKS[0]
OPENED = "opened"  # the prompt ends with the opening mark


def split(marks: ThinkingMarks | str | None, pieces: list[str]) -> list[tuple[str, str]]:
    """The parts of a whole reply, neighbours of a kind joined."""
    splitter = ThoughtSplitter(THINK, thinking=True) if isinstance(marks, str) else ThoughtSplitter(marks)
    found = [piece for text in pieces for piece in splitter.push(text)] + splitter.flush()
    assert all(piece.text for piece in found)
    joined: list[tuple[str, str]] = []
    for piece in found:
        if joined and joined[-1][0] == piece.part:
            joined[-1] = (piece.part, joined[-1][1] + piece.text)
        else:
            joined.append((piece.part, piece.text))
    return joined


CASES = [
    (THINK, "<think>\nso\n</think>\n\nYes.\n", [("thought", "so\n"), ("answer", "Yes.\n")]),
    (THINK, "Yes.", [("answer", "Yes.")]),
    (THINK, "\n <think></think>\n\nYes", [("answer", "Yes")]),
    (THINK, "The mark <think> opens, </think> closes.", [("answer", "The mark <think> opens, </think> closes.")]),
    (THINK, "<think>a <think> b</think>c</think>", [("thought", "a <think> b"), ("answer", "c</think>")]),
    (THINK, "<think>cut of", [("thought", "cut of")]),
    (THINK, "<think>a</thi", [("thought", "a</thi")]),
    (THINK, "<thin ice", [("answer", "<thin ice")]),
    (OPENED, "so\n</think>\n\nYes.", [("thought", "so\n"), ("answer", "Yes.")]),
    (OPENED, "<think>so</think>Yes", [("thought", "so"), ("answer", "Yes")]),
    (None, "\n<think>a</think>", [("answer", "\n<think>a</think>")]),
    (HARMONY, f"{HARMONY.opens}hm{HARMONY.closes}Yes<|end|>", [("thought", "hm"), ("answer", "Yes<|end|>")]),
    (HARMONY, f"{HARMONY.skips}Yes", [("answer", "Yes")]),
]


@pytest.mark.parametrize(("marks", "reply", "expected"), CASES)
@given(data=st.data())
def test_a_reply_splits_the_same_however_it_is_cut(
    marks: ThinkingMarks | str | None, reply: str, expected: list[tuple[str, str]], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(reply)))))
    pieces = [reply[a:b] for a, b in zip([0, *cuts], [*cuts, len(reply)], strict=True)]
    assert split(marks, pieces) == split(marks, [reply]) == expected


def test_text_is_shown_as_soon_as_it_is_certain() -> None:
    splitter = ThoughtSplitter(THINK)
    shown = [[(p.part, p.text) for p in splitter.push(text)] for text in ("<th", "ink>", "a<", "b", "</think>", "c")]
    assert shown == [[], [], [("thought", "a")], [("thought", "<b")], [], [("answer", "c")]]


@pytest.mark.parametrize(
    ("family", "expected"),
    [("qwen3", ThinkingMarks("<think>", "</think>", are_tokens=True)), ("llama", None), ("gpt_oss", None)],
)
def test_marks_of_models(family: str, expected: ThinkingMarks | None) -> None:
    assert text_from_folder(TINY / family).thinking == expected


def test_marks_that_are_plain_text_and_that_the_template_opens() -> None:
    vocabulary = text_from_folder(TINY / "llama").tokenizer.vocabulary
    source = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}|{% endfor %}"
    for ending, opened in (("<think>\n", True), ("<think>\n\n</think>\n\n", False)):
        template = ChatTemplate(source + "{% if add_generation_prompt %}assistant:" + ending + "{% endif %}")
        assert find_thinking(template, vocabulary) == THINK
        assert THINK.opened_by(template.render([{"role": "user", "content": "Hi"}])) == opened
    assert find_thinking(ChatTemplate(source), vocabulary) is None


def test_the_harmony_format_is_known_by_its_tokens(tmp_path: Path) -> None:
    shutil.copytree(TINY / "llama", tmp_path / "m", ignore=shutil.ignore_patterns("*.safetensors", "gguf", "golden*"))
    path = tmp_path / "m" / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    for old, new in (("<|im_start|>", "<|start|>"), ("<|endoftext|>", "<|message|>"), ("<|im_end|>", "<|channel|>")):
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    thinking = text_from_folder(tmp_path / "m").thinking
    assert thinking is not None and thinking.opens == HARMONY.opens and thinking.are_tokens
