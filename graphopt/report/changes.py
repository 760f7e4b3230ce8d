"""Single choices of an answer: in words, compared with another answer's, set by hand, blamed for its price.

Shape legend: B sets, C ops that differ from the default, N ops, H heads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import DecisionError
from graphopt.core.graph import F64, I64
from graphopt.core.plan import Decisions, Head
from graphopt.problems.assignment import Choices

BETTER = 1e-9  # relative gain from which a price counts as lower


def describe(head: Head, choice: int) -> str:
    """A choice in words where there are words."""
    return head.words[choice] if choice < len(head.words) else str(choice)


def describe_op(decided: Choices, heads: Sequence[Head], row: NDArray[np.int16]) -> str:
    """All choices [H] of one op, of a plan from random keys those that are known."""
    words = {head.name: describe(head, int(c)) for head, c in zip(heads, row) if head.name in decided.described}
    return next(iter(words.values())) if len(heads) == 1 else ", ".join(f"{h} {w}" for h, w in words.items())


def differing(a: Choices, b: Choices) -> tuple[I64, list[str]]:
    """(ops whose choice differs, the heads that both describe). Raises DecisionError for answers to different graphs
    or tasks, and where there is no such head."""
    graph_a, graph_b = a.header["graph"], b.header["graph"]
    if graph_a["hash"] != graph_b["hash"]:
        names = f"{graph_a['name']!r} ({graph_a['hash']}) and {graph_b['name']!r} ({graph_b['hash']})"
        raise DecisionError(f"the decisions are of different graphs, {names}: compare decisions of one graph")
    if a.heads != b.heads:
        raise DecisionError(
            f"the decisions choose different things, {a.heads} and {b.heads}: compare decisions of one task"
        )
    both = [head for head in a.described if head in b.described]
    if not both:
        raise DecisionError(
            "one of the answers is a program, or a plan of random keys of which no choices are known: compare prices"
        )
    columns = [list(a.heads).index(head) for head in both]
    return np.flatnonzero((a.choices != b.choices)[:, columns].any(1)), both


def parse_change(decided: Choices, heads: Sequence[Head], text: str) -> tuple[int, NDArray[np.int16]]:
    """`OP` (back to the default), `OP=CHOICE` or `OP=HEAD:CHOICE` -> (op, its new choices [H])."""
    name, equals, wanted = text.rpartition("=")
    if not equals or text in decided.op_names:
        op = decided.op(text)
        return op, decided.default[op].copy()
    op = decided.op(name)
    name, _, value = wanted.rpartition(":")
    names = [head.name for head in heads]
    if name not in names and (name or len(heads) > 1):
        raise DecisionError(f"say OP=HEAD:CHOICE with one of the heads {', '.join(names)}, not {wanted!r}")
    column = names.index(name) if name else 0
    if names[column] not in decided.described:
        known = ", ".join(decided.described)
        raise DecisionError(f"the plan is from random keys, of which only {known} can be set, not {names[column]}")
    row = decided.choices[op].copy()
    row[column] = _parse_choice(heads[column], value)
    return op, row


def _parse_choice(head: Head, value: str) -> int:
    """A number, or a word of the head."""
    if value in head.words:
        return head.words.index(value)
    if not value.isdigit() or int(value) >= head.count:
        words = f" or {', '.join(head.words)}" if head.words else ""
        raise DecisionError(f"{head.name} takes a number from 0 to {head.count - 1}{words}, not {value!r}")
    return int(value)


@dataclass(frozen=True)
class Culprits:
    """What reverting choices would do to the price."""

    judged: float  # price of the answer
    default: float  # price with every choice reverted
    changed: I64  # [C] ops that differ from the default
    reverted: F64  # [C] price when that op alone is reverted
    ops: I64  # the op, or the minimal set, that gains when it is reverted; empty when none does
    gained: float  # price without these ops


def culprits(
    choices: Choices, judged: float, default: float, changed: I64, alone: F64, price: Callable[[Decisions], F64]
) -> Culprits:
    """The op that gains most when it is reverted; where no single op does, a minimal set.

    Singles cost one price each; sets are searched by delta debugging (Zeller and Hildebrandt 2002, ddmin), from the
    whole difference when the default is better, else from the first half, quarter, ... that gains when it is reverted.
    """

    def found(ops: I64, gained: float) -> Culprits:
        return Culprits(judged, default, changed, alone, ops, gained)

    def gains(sets: Sequence[I64]) -> F64:
        return price(reverted(choices, sets))

    if not len(changed):
        return found(changed, judged)
    best = int(np.argmin(alone))
    if _lower(float(alone[best]), judged):
        return found(changed[best : best + 1], float(alone[best]))
    start, parts = None, 1
    while start is None and parts < len(changed):
        sets = np.array_split(changed, parts)
        prices = gains(sets)
        start = sets[int(np.argmin(prices))] if _lower(float(prices.min()), judged) else None
        parts *= 2
    if start is None:
        return found(changed[:0], judged)
    ops = minimal_set(start, lambda sets: [_lower(float(cost), judged) for cost in gains(sets)])
    return found(ops, float(gains([ops])[0]))


def reverted(choices: Choices, sets: Sequence[I64]) -> NDArray[np.int16]:
    """[B, N, H] the choices with each set of ops put back to the default."""
    batch = np.repeat(choices.choices[None], len(sets), 0)
    for b, ops in enumerate(sets):
        batch[b, ops] = choices.default[ops]
    return batch


def _lower(price: float, reference: float) -> bool:
    return price < reference * (1 - BETTER)


def minimal_set(ops: I64, holds: Callable[[Sequence[I64]], list[bool]]) -> I64:
    """A smallest-by-inclusion subset for which `holds` stays true (ddmin); `holds` takes a batch of sets."""
    parts = 2
    while len(ops) > 1:
        sets = np.array_split(ops, parts)
        complements = [np.setdiff1d(ops, part) for part in sets] if parts > 2 else []
        found = next((s for s, yes in zip([*sets, *complements], holds([*sets, *complements])) if yes), None)
        if found is None and parts >= len(ops):
            break
        if found is None:
            parts = min(len(ops), 2 * parts)
        else:
            parts = 2 if len(found) <= len(ops) / 2 else max(parts - 1, 2)
            ops = found
    return ops
