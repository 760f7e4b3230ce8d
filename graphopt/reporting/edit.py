"""What a person does with decisions: compare two, take a single choice back, find the choice that costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graphopt.core.compact import compact
from graphopt.core.head import Head
from graphopt.errors import DecisionError
from graphopt.problems.choices import Choices
from graphopt.problems.decisions import Decision, Decisions
from graphopt.problems.pricing import Pricing
from graphopt.problems.solution import Solution
from graphopt.records.answer_file import write
from graphopt.reporting.stored_case import Case, choices_of

BETTER = 1e-9  # relative gain from which a price counts as lower


def describe(head: Head, choice: int) -> str:
    """A choice in words where there are words."""
    return head.words[choice] if choice < len(head.words) else str(choice)


def describe_op(decision: Choices, heads: Sequence[Head], row: NDArray[np.int16]) -> str:
    """All choices [H] of one op, of a plan from random keys those that are known."""
    words = {head.name: describe(head, int(c)) for head, c in zip(heads, row) if head.name in decision.described}
    return next(iter(words.values())) if len(heads) == 1 else ", ".join(f"{h} {w}" for h, w in words.items())


def both_describe(a: Choices, b: Choices) -> list[str]:
    """Heads under which the choices of both say what is done."""
    return [head for head in a.described if head in b.described]


def differing(a: Choices, b: Choices) -> NDArray[np.int64]:
    """Ops whose choice differs, under heads that both describe. Raises DecisionError for decisions of different graphs
    or tasks, and where there is no such head."""
    graph_a, graph_b = a.header["graph"], b.header["graph"]
    if graph_a["hash"] != graph_b["hash"]:
        names = f"{graph_a['name']!r} ({graph_a['hash']}) and {graph_b['name']!r} ({graph_b['hash']})"
        raise DecisionError(f"the decisions are of different graphs, {names}: compare decisions of one graph")
    if a.heads != b.heads:
        raise DecisionError(
            f"the decisions choose different things, {a.heads} and {b.heads}: compare decisions of one task"
        )
    columns = [list(a.heads).index(head) for head in both_describe(a, b)]
    if not columns:
        raise DecisionError(
            "one of the answers is a program, or a plan of random keys of which no choices are known: compare prices"
        )
    return np.flatnonzero((a.choices != b.choices)[:, columns].any(1))


def parse_veto(decision: Choices, heads: Sequence[Head], text: str) -> tuple[int, NDArray[np.int16]]:
    """`OP` (back to the default), `OP=CHOICE` or `OP=HEAD:CHOICE` -> (op, its new choices [H])."""
    name, equals, wanted = text.rpartition("=")
    if not equals or text in decision.op_names:
        op = decision.op(text)
        return op, decision.default[op].copy()
    op = decision.op(name)
    name, _, value = wanted.rpartition(":")
    names = [head.name for head in heads]
    if name not in names and (name or len(heads) > 1):
        raise DecisionError(f"say OP=HEAD:CHOICE with one of the heads {', '.join(names)}, not {wanted!r}")
    column = names.index(name) if name else 0
    if names[column] not in decision.described:
        known = ", ".join(decision.described)
        raise DecisionError(f"the plan is from random keys, of which only {known} can be set, not {names[column]}")
    row = decision.choices[op].copy()
    row[column] = _parse_choice(heads[column], value)
    return op, row


def _parse_choice(head: Head, value: str) -> int:
    if value in head.words:
        return head.words.index(value)
    if not value.isdigit() or int(value) >= head.count:
        words = f" or {', '.join(head.words)}" if head.words else ""
        raise DecisionError(f"{head.name} takes a number from 0 to {head.count - 1}{words}, not {value!r}")
    return int(value)


@dataclass(frozen=True)
class Veto:
    """A decision with one op's choice set by hand."""

    decision: Choices
    accepted: bool  # False: the task cannot do what was asked, and the plan is what it was before


def veto(case: Case, text: str) -> Veto:
    """Sets one op's choice as `text` says (see `parse_veto`) and prices again."""
    decision, graph, task = choices_of(case), case.graph, case.task
    choices = decision.choices.copy()
    op, row = parse_veto(decision, task.heads, text)
    before = decision.realise(graph, task, choices[None])
    changed = bool((choices[op] != row).any())
    choices[op] = row
    plans = decision.realise(graph, task, choices[None])
    after = plans.arrays()
    same = all(np.array_equal(array, after[name]) for name, array in before.arrays().items())
    prices = {**decision.prices, **case.prices_of(Solution(graph, task, decision, plans))}
    edits = [*decision.header.get("edits", []), text]
    edited = replace(
        decision,
        header={**decision.header, "prices": prices, "edits": edits},
        choices=task.canonical(graph, choices),
        plan=compact(plans, case.machine.num_devices) if decision.plan else {},
    )
    return Veto(edited, not (changed and same))


def judge_choices(case: Case, choices: Decisions, chunk: int = 256) -> NDArray[np.float64]:
    """[B] prices by the judge of choices [B, N, H], in the place of the answer's."""
    decision, pricing = choices_of(case), Pricing(case.graph, case.task, case.judge)
    parts = (choices[i : i + chunk] for i in range(0, len(choices), chunk))
    return np.concatenate([pricing.plans(decision.realise(case.graph, case.task, part)).cost for part in parts])


def write_veto(case: Case, text: str, out: Path) -> Veto:
    result = veto(case, text)
    write(out, result.decision)
    return result


@dataclass(frozen=True)
class Blame:
    """What taking choices back would do to the price."""

    judged: float  # price of the decision
    default: float  # price with every choice taken back
    ops: NDArray[np.int64]  # [C] ops that differ from the default
    reverted: NDArray[np.float64]  # [C] price when that op alone goes back
    culprits: NDArray[np.int64]  # the op, or the minimal set, whose way back gains; empty when none does
    gained: float  # price without the culprits


def bisect(case: Case) -> Blame:
    """Finds the op whose way back to the default lowers the price most; where no single op does, a minimal set.

    Singles cost one price each; sets are searched by delta debugging (Zeller and Hildebrandt 2002, ddmin), from the
    whole difference when the default is better, else from the first half, quarter, ... that gains when it goes back.
    """
    decision = choices_of(case)
    choices, default, ops = decision.choices, decision.default, decision.changed()
    judged = float(judge_choices(case, choices[None])[0])
    whole = float(judge_choices(case, default[None])[0])
    if not len(ops):
        return Blame(judged, whole, ops, np.zeros(0), ops, judged)
    reverted = taken_back(case, ops)[1]
    best = int(np.argmin(reverted))
    if _lower(float(reverted[best]), judged):
        return Blame(judged, whole, ops, reverted, ops[best : best + 1], float(reverted[best]))

    def gains(sets: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
        return judge_choices(case, _revert(choices, default, sets))

    start = _gaining_part(ops, gains, judged)
    if start is None:
        return Blame(judged, whole, ops, reverted, ops[:0], judged)
    culprits = minimal_set(start, lambda sets: [_lower(float(price), judged) for price in gains(sets)])
    return Blame(judged, whole, ops, reverted, culprits, float(gains([culprits])[0]))


def taken_back(case: Case, ops: NDArray[np.int64]) -> tuple[float, NDArray[np.float64]]:
    """(price of the choices, [C] price when each of the ops alone goes back to the default), by the judge."""
    choices = choices_of(case).choices
    judged = float(judge_choices(case, choices[None])[0])
    if not len(ops):
        return judged, np.zeros(0)
    return judged, judge_choices(case, _revert(choices, case.decision.default, [np.array([op]) for op in ops]))


def _revert(choices: Decision, default: Decision, sets: Sequence[NDArray[np.int64]]) -> NDArray[np.int16]:
    """[B, N, H] the choices with each set of ops put back to the default."""
    batch = np.repeat(choices[None], len(sets), 0)
    for b, ops in enumerate(sets):
        batch[b, ops] = default[ops]
    return batch


def _lower(price: float, reference: float) -> bool:
    return price < reference * (1 - BETTER)


def _gaining_part(
    ops: NDArray[np.int64], price: Callable[[Sequence[NDArray[np.int64]]], NDArray[np.float64]], judged: float
) -> NDArray[np.int64] | None:
    """All ops, or the first half, quarter, ... whose way back gains."""
    parts = 1
    while parts < len(ops):
        sets = np.array_split(ops, parts)
        prices = price(sets)
        if _lower(float(prices.min()), judged):
            return sets[int(np.argmin(prices))]
        parts *= 2
    return None


def minimal_set(
    ops: NDArray[np.int64], holds: Callable[[Sequence[NDArray[np.int64]]], list[bool]]
) -> NDArray[np.int64]:
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
