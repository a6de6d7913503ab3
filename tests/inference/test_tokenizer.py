"""Tokenizers against llama.cpp's ids for real models, Transformers' for tiny ones, and SentencePiece's rule."""

import json
import threading
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference import sentencepiece
from inference.errors import BadModelFile, UnsupportedModel
from inference.formats.gguf import MetaValue, open_gguf
from inference.tokenizer import StreamDecoder, Tokenizer
from inference.vocabulary import TokenType, Vocabulary

TINY = Path(__file__).parents[1] / "data" / "tiny"


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(open_gguf(smollm2_path).metadata)


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(open_gguf(gemma3_path).metadata)


@pytest.fixture
def real(request: pytest.FixtureRequest, golden: Callable[[str], Any]) -> tuple[Tokenizer, dict[str, Any]]:
    return request.getfixturevalue(request.param), golden(f"{request.param}.tok.json")


both = pytest.mark.parametrize("real", ["smollm2", "gemma3"], indirect=True)


@cache
def tiny_metadata(family: str) -> dict[str, MetaValue]:
    return dict(open_gguf(TINY / family / "gguf" / "model-f16.gguf").metadata)


@cache
def tiny_tokenizer(family: str) -> Tokenizer:
    return Tokenizer.from_gguf(tiny_metadata(family))


@both
@pytest.mark.parametrize("add_special", [False, True])
@pytest.mark.parametrize("parse_special", [False, True])
def test_ids_equal_llama_cpp(real: tuple[Tokenizer, dict[str, Any]], add_special: bool, parse_special: bool) -> None:
    tokenizer, golden = real
    key = f"a{int(add_special)}p{int(parse_special)}"
    cases = golden["cases"]
    assert len(cases) > 100
    differing = [c["text"] for c in cases if tokenizer.encode(c["text"], add_special, parse_special) != c[key]]
    assert differing == []


@both
def test_decoding_gives_the_bytes_back(real: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, golden = real
    compared = 0
    for case in golden["cases"]:
        for key in (k for k in ("a0p0", "a0p1") if f"detok_{k}" in case):
            expected = bytes.fromhex(case[f"detok_{key}"])
            assert b"".join(map(tokenizer.token_bytes, case[key])) == expected
            assert tokenizer.decode(case[key]) == expected.decode()
            compared += 1
    assert compared > 100
    for token_id, (_, with_special) in golden["pieces"].items():
        assert tokenizer.token_bytes(int(token_id)) == bytes.fromhex(with_special)


@both
def test_facts_of_the_vocabulary(real: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, golden = real
    facts = golden["vocab"]
    assert tokenizer.vocab_size == facts["n_vocab"]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (facts["bos"], facts["eos"], facts["add_bos"])
    assert {facts["eos"], facts["eot"]} <= tokenizer.stop_ids <= set(facts["eog"])
    control = set(tokenizer.vocabulary.control.values())
    assert set(facts["control"]) <= control and tokenizer.stop_ids <= control


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_ids_equal_transformers(family: str) -> None:
    tokenizer = tiny_tokenizer(family)
    reference = json.loads((TINY / family / "golden.json").read_text(encoding="utf-8"))
    assert reference["encode"]
    for case in reference["encode"]:
        assert tokenizer.encode(case["text"], parse_special=True) == case["ids"]
        assert tokenizer.encode(case["text"], add_special=True, parse_special=True) == case["ids_with_special"]
        assert tokenizer.decode(case["ids"]) == case["decoded"]
    assert set(reference["eos_token_ids"]) == tokenizer.stop_ids


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@given(text=st.text(st.characters(exclude_characters="▁", codec="utf-8"), max_size=40))
@settings(deadline=None, max_examples=100)
def test_streaming_never_gives_half_a_character(family: str, text: str) -> None:
    """U+2581 is left out: SentencePiece vocabularies cannot tell it from a space."""
    tokenizer = tiny_tokenizer(family)
    ids = tokenizer.encode(text)
    decoder = StreamDecoder(tokenizer)
    pieces = [decoder.push(i) for i in ids]
    assert "".join(pieces) == tokenizer.decode(ids) == text
    assert decoder.flush() == ""
    assert all(("\ufffd" in piece) <= ("\ufffd" in text) for piece in pieces)


def test_an_unfinished_character_is_flushed() -> None:
    tokenizer = tiny_tokenizer("llama")
    ids = tokenizer.encode("é")
    assert len(ids) == 2
    decoder = StreamDecoder(tokenizer)
    assert (decoder.push(ids[0]), decoder.flush()) == ("", "\ufffd")
    assert "".join(map(decoder.push, ids)) == "é"  # nothing is left over from before
    assert decoder.push(ids[0]) + decoder.push(tokenizer.encode("a")[0]) == "\ufffda"


def test_literals_are_never_parsed() -> None:
    tokenizer = tiny_tokenizer("llama")
    mark, name = "\U000f0000", "<|im_end|>"
    stop = tokenizer.encode(name, parse_special=True)
    assert len(stop) == 1
    plain = tokenizer.encode(f"a{name}b")
    assert stop[0] not in plain
    assert tokenizer.encode(f"a{mark}b{name}", parse_special=True, literals={mark: name}) == plain + stop


def test_lone_surrogates_become_replacement_characters() -> None:
    for family in ("llama", "gemma3_text"):
        tokenizer = tiny_tokenizer(family)
        assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        ({"tokenizer.ggml.model": "bert"}, UnsupportedModel, "'bert', expected 'gpt2'.*or 'llama'"),
        ({"tokenizer.ggml.pre": "martian"}, UnsupportedModel, "'martian'.*only codeshell.*smollm"),
        ({"tokenizer.ggml.tokens": "x"}, BadModelFile, "tokens is not a list of strings"),
        ({"tokenizer.ggml.merges": 3}, BadModelFile, "merges is not a list of strings"),
        ({"tokenizer.ggml.token_type": np.ones(3, np.int32)}, BadModelFile, "token_type has 3 entries, expected"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, BadModelFile, "bos_token_id is 1000000, expected an id below"),
    ],
)
def test_metadata_that_cannot_work_are_named(changed: dict[str, MetaValue], kind: type, words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        Tokenizer.from_gguf(tiny_metadata("llama") | changed)
    assert "\n" not in str(caught.value)


def test_scores_are_needed() -> None:
    with pytest.raises(BadModelFile, match="scores is not a list of numbers"):
        Tokenizer.from_gguf({k: v for k, v in tiny_metadata("gemma3_text").items() if k != "tokenizer.ggml.scores"})


def test_merges_are_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata, folder = tiny_metadata("gemma3_text"), tmp_path / "made" / "here"
    expected = Tokenizer.from_gguf(metadata).encode("The garden's stones")
    assert Tokenizer.from_gguf(metadata, folder).encode("The garden's stones") == expected
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    calls: list[Vocabulary] = []
    original = sentencepiece.merges_from_scores

    def counted(vocabulary: Vocabulary, scores: sentencepiece.Scores) -> sentencepiece.Merges:
        calls.append(vocabulary)
        return original(vocabulary, scores)

    monkeypatch.setattr(sentencepiece, "merges_from_scores", counted)
    assert Tokenizer.from_gguf(metadata, folder).encode("The garden's stones") == expected
    assert calls == []
    for damaged in (b"", whole[:-4], whole[:-1] + bytes([whole[-1] ^ 1]), b"x" * len(whole)):
        file.write_bytes(damaged)
        assert Tokenizer.from_gguf(metadata, folder).encode("The garden's stones") == expected
        assert file.read_bytes() == whole and list(folder.iterdir()) == [file]
    assert len(calls) == 4


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    Tokenizer.from_gguf(tiny_metadata("gemma3_text"), blocked / "cache")


PIECES = ["▁", "a", "b", "c", "ab", "bc", "abc", "▁a", "▁ab", "aa", "aaa", "ca", "cab", "bca", "<s", "</"]


def write_sentencepiece(path: Path, scores: list[float], add_space_prefix: bool) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *PIECES, "<", "s", ">", "/"]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    types += [TokenType.NORMAL] * (len(tokens) - len(types))
    all_scores = [0.0] * 259 + scores + [-100.0] * 4
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(all_scores)
    writer.add_token_types([int(t) for t in types])
    for role, token_id in (("unk", 0), ("bos", 1), ("eos", 2)):
        getattr(writer, f"add_{role}_token_id")(token_id)
    writer.add_add_space_prefix(add_space_prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def sentencepiece_rule(text: str, score_of: dict[str, float]) -> list[str]:
    """Joins the neighbours whose joined text has the highest score, leftmost first, until none is left."""
    parts = list(text)
    while True:
        joins = [(score_of[a + b], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in score_of]
        if not joins:
            return parts
        i = -max(joins)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@given(order=st.permutations(range(len(PIECES))), text=st.text("abc <s/>é", max_size=24))
@settings(deadline=None, max_examples=150)
def test_merges_follow_the_scores(tmp_path_factory: pytest.TempPathFactory, order: list[int], text: str) -> None:
    path = tmp_path_factory.mktemp("spm") / "model.gguf"
    scores = [-float(rank) for rank in order]
    write_sentencepiece(path, scores, add_space_prefix=False)
    tokenizer = Tokenizer.from_gguf(open_gguf(path).metadata)
    parts = sentencepiece_rule(text.replace(" ", "▁"), dict(zip(PIECES, scores, strict=True)))
    expected = [b for p in parts for b in (["<0xC3>", "<0xA9>"] if p == "é" else [p])]
    assert [tokenizer.token_text(i) for i in tokenizer.encode(text)] == expected


def test_text_is_never_merged_into_a_control_token(tmp_path: Path) -> None:
    """The pieces <s and > are there, and <s> has the best score."""
    write_sentencepiece(tmp_path / "m.gguf", [-float(i) for i in range(len(PIECES))], add_space_prefix=True)
    tokenizer = Tokenizer.from_gguf(open_gguf(tmp_path / "m.gguf").metadata)
    assert [tokenizer.token_text(i) for i in tokenizer.encode("<s>")] == ["▁", "<s", ">"]
    assert tokenizer.encode("<s>", parse_special=True) == [1]


def test_a_space_before_the_first_word_where_the_model_wants_it(tmp_path: Path) -> None:
    write_sentencepiece(tmp_path / "m.gguf", [-float(i) for i in range(len(PIECES))], add_space_prefix=True)
    tokenizer = Tokenizer.from_gguf(open_gguf(tmp_path / "m.gguf").metadata)
    texts = [tokenizer.token_text(i) for i in tokenizer.encode("c</s>c c", add_special=True, parse_special=True)]
    assert texts == ["<s>", "▁", "c", "</s>", "▁", "c", "▁", "c"]
    assert tokenizer.encode("") == []


def test_others_run_while_a_long_text_is_encoded() -> None:
    tokenizer, text = tiny_tokenizer("qwen3"), "some words, and ünïcode\n" * 40_000
    thread = threading.Thread(target=lambda: tokenizer.encode(text))
    thread.start()
    beats = 0
    while thread.is_alive():
        time.sleep(0.002)
        beats += 1
    assert beats > 20
