"""A reply that was stopped goes on as if it had not been."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inference import Engine, Sampling
from inference.events import Event, Prefill, Prompted
from inference.tokenizer import ids_that_spell
from tests.inference.replies import ids_of, reply, text_of

Tiny = Callable[[str], Path]
MESSAGES = [{"role": "user", "content": "Tell me of the sea."}]
SEEDED = Sampling(temperature=1.0, seed=11)


@pytest.fixture(scope="module", params=["qwen3", "llama", "gemma3_text"])
def engine(request: pytest.FixtureRequest, tiny: Tiny) -> Iterator[Engine]:
    """A byte-level vocabulary, one with ▁ for spaces, and a model with a ring."""
    engine = Engine.open(tiny(request.param), device="cpu")
    yield engine
    engine.close()


def prompted(events: list[Event]) -> Prompted:
    return next(event for event in events if isinstance(event, Prompted))


@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_the_very_same_tokens_follow(engine: Engine, tokens: int) -> None:
    whole = reply(engine, MESSAGES, SEEDED, max_tokens=24)
    sequence = engine.sequence()
    begun = reply(engine, MESSAGES, SEEDED, max_tokens=tokens, sequence=sequence)
    rest = reply(engine, MESSAGES, SEEDED, max_tokens=24 - tokens, sequence=sequence, begun=text_of(begun))
    assert ids_of(begun) + ids_of(rest) == ids_of(whole)
    again = prompted(rest)
    assert list(again.ids) == [*prompted(whole).ids, *ids_of(whole)[:tokens]]
    assert again.reused == len(again.ids) - 1
    sequence.close()


def test_tokens_after_a_stop_that_nobody_saw_are_not_part_of_it(engine: Engine) -> None:
    sequence = engine.sequence()
    events = reply(engine, MESSAGES, SEEDED, max_tokens=12, sequence=sequence)
    prompt, ids = prompted(events).ids, ids_of(events)
    seen = text_of(reply(engine, MESSAGES, SEEDED, max_tokens=5))
    rest = prompted(reply(engine, MESSAGES, SEEDED, max_tokens=1, sequence=sequence, begun=seen))
    assert list(rest.ids) == [*prompt, *ids[:5]]
    sequence.close()


def test_a_text_that_the_sequence_does_not_hold_is_encoded_behind_the_prompt(engine: Engine) -> None:
    text = "The sea is wide, and"
    for event in reply(engine, MESSAGES, max_tokens=1, begun=text):
        if isinstance(event, Prefill):
            assert event.reused == 0
        if isinstance(event, Prompted):
            prompt = engine.encode_chat(MESSAGES)
            assert engine.tokenizer.decode(event.ids) == engine.tokenizer.decode(prompt) + text


def test_what_was_written_never_yields_control_tokens(engine: Engine) -> None:
    name, control = next((name, id) for name, id in engine.tokenizer.vocabulary.control.items() if name.isprintable())
    ids = engine.encode_chat(MESSAGES, begun=f"so {name} is a name")
    assert ids.count(control) == engine.encode_chat(MESSAGES).count(control)
    assert engine.tokenizer.decode(ids).endswith(f"so {name} is a name")


def test_only_a_reply_to_messages_can_have_begun(engine: Engine) -> None:
    with pytest.raises(ValueError, match="messages"):
        reply(engine, [5, 6, 7], begun="text")


def test_half_a_character_at_the_end(engine: Engine) -> None:
    [(first, second), (letter,)] = (engine.tokenizer.encode(text)[-count:] for text, count in (("é", 2), ("a", 1)))
    assert ids_that_spell(engine.tokenizer, [letter, first], "a�") == [letter, first]
    assert ids_that_spell(engine.tokenizer, [letter, first, second], "a") == [letter]
    assert ids_that_spell(engine.tokenizer, [letter, first, second], "b") is None
