"""Train the demo adapter in assets/demo-lora: SmolLM2-135M-Instruct that answers as a pirate.

    pip install torch transformers peft
    python tools/train_demo_lora.py --model SmolLM2-135M-Instruct.Q4_1.gguf --out assets/demo-lora

In an environment that has this project (`pip install -e .`), from the root of the repository. The model is the file
that tools/fetch_test_models.py fetches. The adapter is trained on a GPU where there is one. On a CPU a step takes
seconds; `--steps 40` is enough to see the effect.
"""

import argparse
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from demo_lora_data import HELD_OUT, Example, make_examples
from peft import LoraConfig, PeftModel, get_peft_model
from peft.helpers import rescale_adapter_scale
from transformers import LlamaConfig, LlamaForCausalLM

from inference.chat_template import ChatTemplate, encode_chat
from inference.formats.gguf import GGUFFile, open_gguf
from inference.formats.planar import from_ggml
from inference.models.common import HF_NAMES
from inference.models.config import ModelConfig
from inference.models.families import config_from_gguf
from inference.models.weights import weight_map
from inference.tokenizer import Tokenizer

BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"
GOLDEN = Path(__file__).parent.parent / "tests/data/golden"
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RANK, ALPHA = 2, 4
BATCH, LEARNING_RATE, WARMUP = 8, 2e-3, 0.05
MAX_BYTES = 2_000_000
STRENGTHS = (0.0, 0.5, 1.0)
IGNORED = -100  # the label of tokens that PyTorch's cross-entropy leaves out


@dataclass(frozen=True)
class Chat:
    """What turns conversations into token ids and back."""

    tokenizer: Tokenizer
    template: ChatTemplate

    def encode(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool) -> list[int]:
        return encode_chat(self.template, self.tokenizer, messages, add_generation_prompt)


def load_base(file: GGUFFile, config: ModelConfig) -> LlamaForCausalLM:
    """The model of a llama GGUF file in Transformers, float32."""
    rope = config.layers[0].rope
    model = LlamaForCausalLM(
        LlamaConfig(
            name_or_path=BASE,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_context,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": rope.theta},
            tie_word_embeddings=config.weights["embedding"] == config.weights["lm_head"],
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation="eager",  # the one implementation whose gradient is the same in every run
        )
    )
    names = weight_map(config, HF_NAMES, tied=model.config.tie_word_embeddings)
    weights = {}
    for canonical, stored in config.weights.items():
        weight = read_weight(file, stored.tensor)
        if canonical.endswith(("attention.q", "attention.k")) and rope.interleaved:
            weight = halves_from_pairs(weight, config.head_dim)
        weights[names[canonical].tensor] = torch.from_numpy(weight)
    model.load_state_dict(weights, strict=not model.config.tie_word_embeddings)
    return model.eval()


def read_weight(file: GGUFFile, name: str) -> np.ndarray:
    """A tensor as float32 in its own shape."""
    info = file.tensors[name]
    rows = 1 if len(info.shape) == 1 else info.shape[0]
    return from_ggml(info.type, file.data(name), rows, info.shape[-1]).dequantize().reshape(info.shape).copy()


def halves_from_pairs(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of q or k in the order of Transformers.

    GGUF's llama files have the two rows that rotary embedding turns together side by side; Transformers has them half
    a head apart.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(rows // head_dim, head_dim // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def check_base(model: LlamaForCausalLM) -> None:
    """Ends the program where logits are not those of the reference data: the conversion above is wrong, or the file."""
    case = next(c for c in json.loads((GOLDEN / "smollm2.json").read_text())["cases"] if c["id"] == "short")
    golden = np.load(GOLDEN / "smollm2.np64.npz")
    with torch.no_grad():
        logits = model(torch.tensor([case["ids"][: case["n_prompt"]]])).logits[0, -1].numpy()
    error = float(np.abs(logits[golden["short/top_ids"]] - golden["short/top_vals"]).max())
    if error > 1e-2:
        sys.exit(
            f"logits of {case['prompt']!r} are {error:.3g} off the reference, expected 0.01 at most: another model?"
        )
    print(f"logits after {case['prompt']!r}: at most {error:.1e} off the reference")


def encode_example(example: Example, chat: Chat) -> tuple[list[int], list[int]]:
    """Token ids and labels (n,): the labels are the reply with the token that ends it, IGNORED before."""
    prompt = chat.encode(example.messages, add_generation_prompt=True)
    ids = chat.encode([*example.messages, {"role": "assistant", "content": example.reply}], add_generation_prompt=False)
    assert ids[: len(prompt)] == prompt, "the template writes a reply in another place than it asks for one"
    end = next(i for i in range(len(prompt), len(ids)) if ids[i] in chat.tokenizer.stop_ids)
    return ids[: end + 1], [IGNORED] * len(prompt) + ids[len(prompt) : end + 1]


def batches(
    encoded: Sequence[tuple[list[int], list[int]]], seed: int, device: str
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of ids and labels (BATCH, longest), padded at the end, without end: shuffled anew for every epoch."""
    chance = random.Random(seed)
    while True:
        order = chance.sample(encoded, len(encoded))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            longest = max(len(ids) for ids, _ in chosen)
            # Tokens at the end are seen by none before them, so the padding needs no mask.
            ids = [ids + [0] * (longest - len(ids)) for ids, _ in chosen]
            labels = [labels + [IGNORED] * (longest - len(labels)) for _, labels in chosen]
            yield torch.tensor(ids, device=device), torch.tensor(labels, device=device)


def train(model: PeftModel, encoded: Sequence[tuple[list[int], list[int]]], steps: int, seed: int) -> float:
    """Trains the adapter with AdamW; returns the mean loss of the last tenth of the steps."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps + 1, pct_start=WARMUP)
    losses = []
    for step, (ids, labels) in zip(range(steps), batches(encoded, seed, model.device.type), strict=False):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step + 1:4} of {steps}: loss {losses[-1]:.3f}", flush=True)
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)


def reply(model: PeftModel, question: str, chat: Chat, max_tokens: int = 80) -> str:
    """The greedy reply to a question."""
    ids = chat.encode([{"role": "user", "content": question}], add_generation_prompt=True)
    with torch.no_grad():
        out = model.generate(
            input_ids=torch.tensor([ids], device=model.device),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long, device=model.device),
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=sorted(chat.tokenizer.stop_ids),
            pad_token_id=min(chat.tokenizer.stop_ids),
        )
    return chat.tokenizer.decode(out[0, len(ids) :].tolist(), skip_special=True)


def show_replies(model: PeftModel, chat: Chat) -> None:
    """Prints the replies to questions that were not trained on, at every strength."""
    for question in HELD_OUT:
        print(f"\n{question}")
        for strength in STRENGTHS:
            with rescale_adapter_scale(model, strength):
                print(f"  {strength:3}: {' '.join(reply(model, question, chat).split())}")


def save(model: PeftModel, folder: Path, card: str) -> int:
    """Writes the adapter as float16 with its model card; returns the size of the weights in bytes."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.half()
    model.save_pretrained(folder, save_embedding_layers=False)
    # PEFT keeps the targets as a set, whose order differs from run to run.
    config = folder / "adapter_config.json"
    values = json.loads(config.read_text())
    config.write_text(json.dumps(values | {"target_modules": list(TARGETS)}, indent=2, sort_keys=True) + "\n")
    (folder / "README.md").write_text(card)
    return (folder / "adapter_model.safetensors").stat().st_size


def model_card(file: Path, examples: int, steps: int, seed: int, loss: float) -> str:
    """README.md of the adapter."""
    return f"""---
base_model: {BASE}
library_name: peft
license: apache-2.0
language: en
tags: [lora]
---

# Pirate

A LoRA adapter that makes [SmolLM2-135M-Instruct](https://huggingface.co/{BASE})
answer as a pirate. It is a demonstration: what it says is no more reliable than what a model of 135 million
parameters says without it.

- Base: {BASE} (Apache-2.0), dequantised from `{file.name}`.
- Adapter: rank {RANK}, alpha {ALPHA}, on {", ".join(TARGETS)} of all layers, float16.
- Data: {examples} conversations in English, made by `tools/demo_lora_data.py` from questions and short answers written
  for it and a pirate's word list. No other data, and nothing from other models.
- Training: {steps} steps of {BATCH} conversations with AdamW, seed {seed}; only replies count. Last loss {loss:.3f}.
- Licence: Apache-2.0, as the base model; the text is in the `LICENSE` file of this repository.

Made with

    python tools/train_demo_lora.py --model {file.name} --out assets/demo-lora --steps {steps} --seed {seed}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="SmolLM2-135M-Instruct as a GGUF file")
    parser.add_argument("--out", type=Path, required=True, help="folder for the adapter")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is not deterministic
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(arguments.seed)

    file = open_gguf(arguments.model)
    base = load_base(file, config_from_gguf(file))
    check_base(base)
    chat = Chat(Tokenizer.from_gguf(file.metadata), ChatTemplate(str(file.metadata["tokenizer.chat_template"])))
    examples = make_examples(arguments.seed)
    encoded = [encode_example(example, chat) for example in examples]
    lora = LoraConfig(
        base_model_name_or_path=BASE,
        task_type="CAUSAL_LM",
        r=RANK,
        lora_alpha=ALPHA,
        target_modules=list(TARGETS),
    )
    model = get_peft_model(base.to("cuda" if torch.cuda.is_available() else "cpu"), lora)
    model.print_trainable_parameters()
    loss = train(model, encoded, arguments.steps, arguments.seed)
    model.eval()
    show_replies(model, chat)
    card = model_card(arguments.model, len(examples), arguments.steps, arguments.seed, loss)
    size = save(model, arguments.out, card)
    if size > MAX_BYTES:
        sys.exit(f"{arguments.out}: the weights are {size} bytes, more than the {MAX_BYTES} that they may be")
    print(f"\n{arguments.out}: {size} bytes of weights")


if __name__ == "__main__":
    main()
