"""Sampling on WebGPU: the best candidates of slices of the logits, merged until one list is left, then a draw.

The form follows `inference.sampler.sample`. The last dispatch also feeds the token back and moves the step on,
so that decode steps need nothing from the host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from inference.events import StepSpans
from inference.kernels.base import Decision
from inference.kernels.dispatch import STATE, Binding, Constant, Dispatch, KernelContext, tensor
from inference.plan.ops import Op
from inference.sampling import LOGIT_LIMIT, MAX_CANDIDATES, MIN_TEMPERATURE, NUM_ALTERNATIVES, Sampled, Sampling

SETTINGS_WORDS = 10
"""Words (u32) of the "sampling" buffer."""

RESULT_WORDS = 2 + 2 * NUM_ALTERNATIVES
"""Words (u32) of the "result" buffer: chosen id, its logprob, ids of the alternatives, their logprobs."""

THREADS = 256
SLICES = (1024, 2048, 4096)
"""Logits that a workgroup takes the best of. Fewer are faster, where they need no more dispatches."""
MOST_ITEMS = 4096
"""Earlier candidates that a workgroup takes the best of."""
LIST_ENTRIES = MAX_CANDIDATES + 1
ENTRY_BYTES = 8
NO_ID = 0xFFFFFFFF

SETTINGS = Binding("sampling")
COUNTS = Binding("counts")
SCRATCH = Binding("scratch", "sample")


@dataclass(frozen=True)
class Stage:
    """One dispatch: `lists_in` lists of candidates (None: the logits) become `lists_out`, `items` of them each.

    Where they lie in scratch is in entries.
    """

    lists_in: int | None
    lists_out: int
    items: int
    read_from: int
    write_to: int


def choose(op: Op, context: KernelContext) -> Decision:
    """The one kernel for sampling."""
    columns = op.inputs[0].columns
    chain = stages(columns)
    return Decision(
        "candidates", f"{MAX_CANDIDATES} best of each {chain[0].items} logits, one list by dispatch {len(chain)}"
    )


def dispatches(op: Op, decision: Decision, context: KernelContext) -> tuple[Dispatch, ...]:
    """A chain: two dispatches up to 262144 logits, three up to 16 million.

    Buffers, all u32 words: "sampling" as `pack_settings` makes it; "counts" (V), how often each token stands in
    the context, touched only with penalties on; "state" [position, rows]; "tokens"; "result" (RESULT_WORDS);
    scratch of `scratch_bytes`. The last dispatch draws for position + rows and writes the result, tokens[0], the
    token's count and the state [position + rows, 1]. In a batch each row has its own settings, counts, result and
    token, and "state" [unused, rows, position of each row], where it draws for position + 1 and writes that.
    """
    logits = op.inputs[0]
    chain = stages(logits.columns)
    result = []
    for index, stage in enumerate(chain):
        first, last = index == 0, index == len(chain) - 1
        constants: dict[str, Constant] = {
            "VOCAB": logits.columns,
            "KEEP": MAX_CANDIDATES,
            "SHOWN": NUM_ALTERNATIVES,
            "THREADS": THREADS,
            "PER_THREAD": stage.items // THREADS,
            "FIRST": first,
            "LAST": last,
            "LISTS": stage.lists_in or 0,
            "LISTS_OUT": stage.lists_out,
            "FROM": stage.read_from,
            "TO": stage.write_to,
            "LIMIT": LOGIT_LIMIT,
            "SCRATCH_ENTRIES": scratch_bytes(logits.columns) // ENTRY_BYTES,
            "BATCH": context.batch,
        }
        bindings = (
            *((tensor(logits),) if first else ()),
            *(() if first and last else (SCRATCH,)),
            *((SETTINGS, COUNTS) if first or last else ()),
            *((STATE, Binding("tokens"), Binding("result")) if last else ()),
        )
        result.append(Dispatch("sample/candidates.wgsl", constants, bindings, (stage.lists_out, logits.rows, 1)))
    return tuple(result)


def stages(vocab_size: int) -> tuple[Stage, ...]:
    """The chain of dispatches for so many logits: of the shortest, that of the smallest slices."""
    return min((_chain(vocab_size, size) for size in SLICES), key=len)


def _chain(vocab_size: int, size: int) -> tuple[Stage, ...]:
    lists = -(-vocab_size // size)
    result = [Stage(None, lists, size, 0, 0)]
    while lists > 1:
        items = min(-(-lists * MAX_CANDIDATES // THREADS) * THREADS, MOST_ITEMS)
        merged = -(-lists * MAX_CANDIDATES // items)
        read_from = result[-1].write_to
        result.append(Stage(lists, merged, items, read_from, read_from + lists * LIST_ENTRIES))
        lists = merged
    return tuple(result)


def scratch_bytes(vocab_size: int) -> int:
    """Size of the scratch buffer for a row."""
    return ENTRY_BYTES * max(stages(vocab_size)[-1].write_to, 1)


def pack_settings(sampling: Sampling, seed: int) -> np.ndarray:
    """The words (SETTINGS_WORDS,) uint32 of one request, in the order of candidates.wgsl.

    Raises ValueError where the request needs the host (`Sampling.host_reason`).
    """
    if sampling.host_reason is not None:
        raise ValueError(f"sampling on the GPU: {sampling.host_reason}")
    words = np.zeros(SETTINGS_WORDS, np.uint32)
    # Greedy is the best one of one candidate, at any temperature.
    words[1] = 1 if sampling.temperature == 0 else sampling.top_k
    words[7] = sampling.has_penalties
    words[8] = seed & 0xFFFFFFFF
    words[9] = seed >> 32 & 0xFFFFFFFF
    floats = words.view(np.float32)
    floats[0] = min(max(sampling.temperature, MIN_TEMPERATURE), LOGIT_LIMIT)
    floats[2] = sampling.top_p
    floats[3] = math.log(sampling.min_p) if sampling.min_p > 0 else -LOGIT_LIMIT
    floats[4:7] = np.clip((sampling.repetition, sampling.frequency, sampling.presence), -LOGIT_LIMIT, LOGIT_LIMIT)
    return words


def unpack_results(words: np.ndarray, spans: StepSpans | None = None) -> tuple[Sampled, ...]:
    """The records that the last dispatch wrote, uint32 (N, RESULT_WORDS), of a step that took `spans`."""
    values, ids = words.view(np.float32), words[:, 2 : 2 + NUM_ALTERNATIVES]
    # Fewer than the alternatives only in a smaller vocabulary.
    counts = np.count_nonzero(ids != NO_ID, axis=1)
    # As lists once for all rows: one by one they would take four times as long.
    columns = (words[:, 0], values[:, 1], ids, values[:, 2 + NUM_ALTERNATIVES :], counts)
    return tuple(
        Sampled(chosen, logprob, tuple(top_ids[:count]), tuple(top_logprobs[:count]), spans or StepSpans())
        for chosen, logprob, top_ids, top_logprobs, count in zip(*(column.tolist() for column in columns), strict=True)
    )
