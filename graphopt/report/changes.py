"""Single choices of an answer: in words, compared with another answer's, set by hand, blamed for its price.

Shape legend: C ops that differ from the default, N ops, H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import DecisionError
from graphopt.core.graph import F64, I64, Graph
from graphopt.core.plan import Head
from graphopt.problems.assignment import Choices

BETTER = 1e-9  # relative gain from which a price counts as lower
WORK = 2e7  # ops priced to find the changes that matter: seconds, for any size of the graph
LEAST = 5  # changes that are priced in any case


def describe(head: Head, choice: int) -> str:
    """A choice in words where there are words."""
    return head.words[choice] if choice < len(head.words) else str(choice)


def describe_op(decided: Choices, heads: Sequence[Head], row: NDArray[np.int16], other: NDArray[np.int16]) -> str:
    """The choices [H] of one op that another decision's are not, of a plan from random keys those that are known."""
    words = {head.name: describe(head, int(choice)) for head, choice, beside in zip(heads, row, other)
             if head.name in decided.described and choice != beside}  # fmt: skip
    return ", ".join(words.values() if len(heads) == 1 else (f"{head} {word}" for head, word in words.items()))


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
    """The effects of reverting choices on the price."""

    judged: float  # price of the answer
    default: float  # price with every choice reverted
    changed: I64  # [C] ops that differ from the default
    reverted: F64  # [C] price when that op alone is reverted

    @property
    def worst(self) -> int | None:
        """Place in `changed` of the op that gains most when it alone is reverted; None where none does."""
        place = int(np.argmin(self.reverted)) if len(self.changed) else 0
        return place if len(self.changed) and self.reverted[place] < self.judged * (1 - BETTER) else None


@dataclass(frozen=True)
class StepPrices:
    """A rewritten program step by step. price: [S + 1], before the first and after each."""

    rules: tuple[str, ...]  # [S] of single rewrites
    price: F64
    noise: float  # relative, of measured prices
    wrong: int | None  # the first step after which outputs differ, found by halves
    difference: str  # the difference; where no step is wrong, why outputs could not be compared, or nothing

    @property
    def change(self) -> F64:
        """[S] relative, of each step."""
        return self.price[1:] / self.price[:-1] - 1.0

    @property
    def worst(self) -> int | None:
        """The step that adds most to the price; None where none adds more than two prices may differ by."""
        least = max(BETTER, 2 * self.noise)
        step = int(np.argmax(self.change)) if len(self.rules) else 0
        return step if len(self.rules) and self.change[step] > least else None


def reverted(choices: Choices, ops: I64) -> NDArray[np.int16]:
    """[C, N, H] the choices with each of the ops alone put back to the default."""
    batch = np.repeat(choices.choices[None], len(ops), 0)
    batch[np.arange(len(ops)), ops] = choices.default[ops]
    return batch


def heaviest(graph: Graph, ops: NDArray[np.int64]) -> NDArray[np.int64]:
    """As many ops as may be priced one by one, those with the most FLOP and bytes first."""
    most = max(LEAST, int(WORK // graph.num_ops))
    weight = graph.flops[ops] + graph.result_bytes[ops]
    return ops if len(ops) <= most else np.sort(ops[np.argsort(-weight, kind="stable")[:most]])
