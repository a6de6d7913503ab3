"""Which files of a repository make a model, and which of its models a name means."""

import pytest

from inference.fetch.choices import choose, choose_adapter, list_adapters, list_choices

SPLIT = [f"m-Q8_0-0000{number}-of-00002.gguf" for number in (1, 2)]
SAFETENSORS = ["config.json", "tokenizer.json", "model.safetensors"]


def of(*names: str):
    return list_choices(dict.fromkeys(names, 10), "org/repo")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["m.Q4_0.gguf", "README.md", "m.Q4_0.txt"], ["m.Q4_0.gguf"]),
        ([*SPLIT, "a/m-Q4_0.gguf"], ["a/m-Q4_0.gguf", SPLIT[0]]),
        (SPLIT[1:], []),
        (["mmproj-F16.gguf", "m-mmproj-f16.gguf", "imatrix_unsloth.gguf", "m.imatrix.gguf"], []),
        (["m-imatrix-Q4_0.gguf"], ["m-imatrix-Q4_0.gguf"]),
        (["m-F16-LoRA.gguf", "m-lora-merged-F16.gguf"], ["m-lora-merged-F16.gguf"]),
        (SAFETENSORS, ["config.json"]),
        (["m.gguf", *SAFETENSORS], ["m.gguf", "config.json"]),
        (SAFETENSORS[1:], []),
        (["config.json", "model.safetensors"], []),
        (["config.json", "tokenizer.json", "pytorch_model.bin", "adapter_model.safetensors"], []),
        (["config.json", "tokenizer.model", "model.safetensors"], ["config.json"]),
        ([*SAFETENSORS[:2], "model-00001-of-00002.safetensors", "model.safetensors.index.json"], []),
        ([*SAFETENSORS[:2], "model-00001-of-00001.safetensors"], []),
        ([*(f"original/{name}" for name in SAFETENSORS)], []),
    ],
)
def test_whole_models_are_choices(names, expected) -> None:
    assert [choice.files[0] for choice in of(*names)] == expected


def test_a_choice_says_what_it_is() -> None:
    gguf, split, folder = of("a/My.Model-UD-q4_k_xl.gguf", *SPLIT, *SAFETENSORS)
    assert (gguf.name, gguf.label, gguf.bytes) == ("org/repo/a/My.Model-UD-q4_k_xl.gguf", "UD-Q4_K_XL", 10)
    assert (split.name, split.label, split.files, split.bytes) == (f"org/repo/{SPLIT[0]}", "Q8_0", tuple(SPLIT), 20)
    assert (folder.name, folder.label, folder.files) == ("org/repo:safetensors", "safetensors", tuple(SAFETENSORS))
    (plain,) = list_choices({"My Model.gguf": 1}, "org/repo", "v1")
    assert (plain.name, plain.label) == ("org/repo/My Model.gguf@v1", "My Model")


@pytest.mark.parametrize(
    ("names", "best"),
    [
        (["m-F16.gguf", "m.q8_0.gguf", "m-Q5_K_M.gguf"], "m-Q5_K_M.gguf"),
        (["m-BF16.gguf", "m-F16.gguf"], "m-F16.gguf"),
        (["b.gguf", "a.gguf"], "a.gguf"),
        (["m-IQ1_S.gguf", "m-Q2_K.gguf"], "m-Q2_K.gguf"),
        (["m-IQ1_S.gguf", *SAFETENSORS], "m-IQ1_S.gguf"),
    ],
)
def test_the_best_is_a_small_gguf(names, best) -> None:
    assert choose(of(*names)).files[0] == best


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("q8_0", SPLIT[0]),
        ("Q4_K_M", "m-Q4_K_M.gguf"),
        ("Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        ("chat", "m-chat-Q6_K.gguf"),
        ("SafeTensors", "config.json"),
    ],
)
def test_a_quantisation_is_found_in_any_case(wanted, expected) -> None:
    choices = of(*SPLIT, "m-Q4_K_M.gguf", "m-UD-Q4_K_XL.gguf", "m-chat-Q6_K.gguf", *SAFETENSORS)
    assert choose(choices, quantization=wanted).files[0] == expected
    assert choose(choices, file=SPLIT[1]).files[0] == SPLIT[0]


def test_what_fits_none_or_several_is_refused_with_what_there_is() -> None:
    choices = of("m-Q4_K_M.gguf", "m-Q4_K_S.gguf", *SAFETENSORS)
    with pytest.raises(LookupError, match=r"has no whole Q8_0; it has m-Q4_K_M\.gguf, m-Q4_K_S\.gguf, safetensors$"):
        choose(choices, quantization="Q8_0")
    with pytest.raises(LookupError, match=r"has several Q4_K: m-Q4_K_M\.gguf, m-Q4_K_S\.gguf; name the file"):
        choose(choices, quantization="Q4_K")
    with pytest.raises(LookupError, match="neither a GGUF, nor safetensors with config and tokenizer"):
        choose(())


PEFT = ["adapter_config.json", "adapter_model.safetensors"]


@pytest.mark.parametrize(
    ("names", "quantization", "expected"),
    [
        ([*PEFT, "README.md", "tokenizer.json"], None, PEFT),
        (["m-Q4_K_M.gguf", "a-F16-LoRA.gguf", *PEFT], None, PEFT),
        (["m-Q4_K_M.gguf", "a-F16-LoRA.gguf"], None, ["a-F16-LoRA.gguf"]),
        (["adapter.gguf", "adapter_config.json"], None, ["adapter.gguf"]),
        (["a-Q8_0.gguf", "a-F16.gguf"], "q8_0", ["a-Q8_0.gguf"]),
        (["a.gguf", *PEFT], "peft", PEFT),
    ],
)
def test_the_adapter_of_a_repository(names, quantization, expected) -> None:
    adapters = list_adapters(dict.fromkeys(names, 10), "org/repo")
    chosen = choose_adapter(adapters, None, quantization)
    assert chosen.files == tuple(expected) and chosen.is_folder is (expected == PEFT)


@pytest.mark.parametrize(
    ("names", "file", "message"),
    [
        (["a-F16.gguf", "b-F16.gguf"], None, r"several adapters: a-F16\.gguf, b-F16\.gguf; name the file"),
        (SAFETENSORS, None, "has no adapter: neither adapter_config.json and adapter_model.safetensors, nor a GGUF"),
        (PEFT[1:], None, "has no adapter"),
        (PEFT, "a.gguf", "has no whole a.gguf; it has PEFT"),
    ],
)
def test_a_repository_without_that_one_adapter(names, file, message) -> None:
    with pytest.raises(LookupError, match=message):
        choose_adapter(list_adapters(dict.fromkeys(names, 10)), file)
