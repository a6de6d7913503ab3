"""Prompts that begin alike are computed once: a state is forked where they part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ids
from contextlib import ExitStack
from dataclasses import dataclass

from inference.sequence import Sequence, common_prefix


@dataclass(frozen=True)
class Goal:
    """The ids that a sequence is to hold, and a number to know it by."""

    number: int
    ids: tuple[int, ...]
    sequence: Sequence


@dataclass(frozen=True)
class Root:
    """A state that several goals begin from, and what to tell where some of it was lost (see Sequence.keep)."""

    state: Sequence
    goals: tuple[Goal, ...]
    notice: str | None


def roots(goals: Ids[Goal], donors: Ids[Sequence], new_sequence: Callable[[], Sequence], made: ExitStack) -> list[Root]:
    """The goals by the state that each has most in common with: that of its own sequence, or of one of `donors`.

    Those stay as they are, but for the sequence of a goal that nothing else begins from. `made` closes all others.
    """
    by_donor: dict[int, list[Goal]] = defaultdict(list)
    chosen: dict[int, Sequence | None] = {}
    for goal in goals:
        best = max((goal.sequence, *donors), key=lambda donor: donor.common_prefix(goal.ids))
        donor = best if best.common_prefix(goal.ids) else None
        chosen[id(donor)] = donor
        by_donor[id(donor)].append(goal)
    states = []
    for key, group in by_donor.items():
        donor = chosen[key]
        if len(group) == 1 and donor in (None, group[0].sequence):
            states.append(group[0].sequence)
        else:
            states.append(_made(new_sequence() if donor is None else donor.fork(), made))
    result = []
    # Only now, since a state may be what another one is forked from.
    for state, group in zip(states, by_donor.values(), strict=True):
        longest = max(group, key=lambda goal: state.common_prefix(goal.ids))
        _, notice = state.keep(longest.ids)
        result.append(Root(state, tuple(group), notice))
    return result


def fill(root: Root, made: ExitStack) -> Iterator[tuple[tuple[Goal, ...], int]]:
    """Compute what the goals of a root lack. After each chunk: whose it was, and how many of its ids are held now."""
    return _fill(root.state, root.goals, made)


def _fill(state: Sequence, goals: tuple[Goal, ...], made: ExitStack) -> Iterator[tuple[tuple[Goal, ...], int]]:
    common = goals[0].ids[: min(common_prefix(goals[0].ids, goal.ids) for goal in goals)]
    if state.common_prefix(common) < len(common):
        yield from _extend(state, common, goals)
    branches: dict[int | None, list[Goal]] = defaultdict(list)
    for goal in goals:
        branches[next(iter(goal.ids[len(common) :]), None)].append(goal)
    # The branch that goes on as the state does comes last and takes it, the others a fork.
    following = next(iter(state.token_ids[len(common) :]), None)
    *others, last = sorted(branches, key=lambda token: token == following)
    for token in (*others, last):
        branch = tuple(branches[token])
        part = state if token == last else _made(state.fork(), made)
        if token is not None:
            yield from _fill(part, branch, made)
            continue
        yield from _extend(part, common, branch)
        *forked, final = branch
        for goal in forked:
            goal.sequence.take_over(_made(part.fork(), made))
        if final.sequence is not part:
            final.sequence.take_over(part)


def _extend(state: Sequence, ids: tuple[int, ...], goals: tuple[Goal, ...]) -> Iterator[tuple[tuple[Goal, ...], int]]:
    held, _ = state.keep(ids)
    for done in state.prefill(ids[held:]):
        yield goals, held + done


def _made(state: Sequence, made: ExitStack) -> Sequence:
    made.callback(state.close)
    return state
