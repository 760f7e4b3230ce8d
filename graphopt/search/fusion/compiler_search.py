"""`compiler_search`: a search for a compiler that allows some twenty evaluations a minute, and whose default is strong.

The search never leaves the default's neighbourhood. It tries single knobs, those that help together, rules that store
or inline many ops at once, and rules with knobs. Then come classes of alike ops, then flips of one to three ops that
several others read. The last evaluations take back parts of the best decision, since some bring nothing.

Shape legend: N ops, H heads.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from graphopt.core.fusible import fusible
from graphopt.core.graph import F64, I64, Bool, Graph
from graphopt.core.plan import Decision, Decisions, Head, Role
from graphopt.core.utils.marks import Few, Share
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.walks.moves import alike

STORE, INLINE = 0, 1  # choices of a binary fusion head


class AtOnce(NamedTuple):
    """ops: [K] that are given one choice."""

    name: str
    ops: I64
    choice: int


def rules(graph: Graph, free: Bool) -> list[AtOnce]:
    """Those that name any op, the best known first. free: [N] ops with a choice.

    `wide_R`: store ops with a reader of at least R times their elements, which would compute them again for each
    element (a scale per row). `readers_R`: store ops with at least R readers. `costly`: store expensive ops with
    several readers. `once`: inline ops with one reader, `cheap`: cheap ops with several.
    """
    f = fusible(graph)
    widest, readers, expensive = widest_reader(graph), reader_counts(graph), f.op["expensive"]
    wanted = [
        AtOnce(f"wide_{ratio}", np.flatnonzero(free & (widest >= ratio * f.op["numel"])), STORE) for ratio in (8, 2)
    ]
    wanted += [AtOnce(f"readers_{least}", np.flatnonzero(free & (readers >= least)), STORE) for least in (2, 3)]
    wanted += [
        AtOnce("costly", np.flatnonzero(free & expensive & (readers >= 2)), STORE),
        AtOnce("once", np.flatnonzero(free & (readers == 1)), INLINE),
        AtOnce("cheap", np.flatnonzero(free & ~expensive & (readers >= 2)), INLINE),
    ]
    return [rule for rule in wanted if len(rule.ops)]


def reader_counts(graph: Graph) -> I64:
    """[N] distinct ops that read any result, through views."""
    op = fusible(graph).op
    counts: I64 = (op["out_end"] - op["out_start"]).astype(np.int64)
    return counts


def widest_reader(graph: Graph) -> F64:
    """[N] elements over which the largest reader runs, 0 without a reader."""
    f = fusible(graph)
    source = np.repeat(np.arange(graph.num_ops), reader_counts(graph))
    out = np.zeros(graph.num_ops)
    np.maximum.at(out, source, np.maximum(f.op["space"], f.op["numel"])[f.out_op])
    return out


Stage = Literal["knobs", "combine", "sweep", "rules", "retune", "classes", "cuts", "flips", "masks", "near"]
Order = Literal["bytes", "random"]
LARGEST_FLIP = 3
SPARE = 6  # one in so many evaluations, at most, is for taking back


MASKS, NEAR = 30, 32  # plans of a sample


class CompilerSearch(Optimizer):
    """stages: names of stages, in their order. knobs: every value of every knob alone; combine: those that helped, the
    best first, each kept if it helps further; sweep: further settings of all knobs, at random, until the budget ends;
    rules: `only` of the rules, all if empty, alone and with changes that helped before; retune: every value of every
    knob with the best so far; cuts: each stored op that others read, kept apart from them; classes, flips: see above.

    batch: decisions that are priced together, from the same best one; where several of them help, all together are
    tried next. margin: relative gain from which a measured price counts as lower. order: of ops that are flipped, by
    the bytes that their readers read, or random.

    masks, near: no search, but plans to fit and to judge cost models by (experiment=calibration). Of the masks the k-th
    of n draws the choice of a share k / n of the ops anew. Near the default are every value of every knob, every rule,
    then flips of one to three ops. Every fourth flip changes cuts, where the task decides these.
    """

    needs_roles = frozenset({Role.FUSION})

    def __init__(self, *, name: str, stages: list[Stage], only: list[str], batch: Few, margin: Share,
                 order: Order) -> None:  # fmt: skip
        self.name, self.stages, self.only = name, stages, only
        self.batch, self.margin, self.order = batch, margin, order

    def solve(self, problem: AssignProblem) -> None:
        climb = Climb(problem, self.batch, self.margin)
        with suppress(OnlySpare):
            for stage in self.stages:
                getattr(self, f"_{stage}")(problem, climb)
        climb.take_back()

    def _knobs(self, problem: AssignProblem, climb: "Climb") -> None:
        climb.alone(single_knobs(problem))

    def _combine(self, problem: AssignProblem, climb: "Climb") -> None:
        """Forward selection among the changes of the default that helped alone."""
        for changes in climb.helpful():
            climb.try_all([changes])

    def _sweep(self, problem: AssignProblem, climb: "Climb") -> None:
        columns = knob_columns(problem)
        settings = list(product(*(range(problem.task.heads[c].count) for c in columns)))
        order = problem.rng.permutation(len(settings))
        climb.alone([(0, c, k) for c, k in zip(columns, settings[i], strict=True)] for i in order)

    def _rules(self, problem: AssignProblem, climb: "Climb") -> None:
        found = [rule for rule in rules(problem.graph, climb.free) if not self.only or rule.name in self.only]
        changes = [climb.fusion(rule.ops, rule.choice) for rule in found]
        climb.alone(changes)
        self._combine(problem, climb)

    def _retune(self, problem: AssignProblem, climb: "Climb") -> None:
        """A knob that does harm alone may help with a rule."""
        if climb.decision is not problem.initial:
            climb.try_all(single_knobs(problem))

    def _classes(self, problem: AssignProblem, climb: "Climb") -> None:
        for classes in alike(problem.graph, climb.free, 3):
            climb.try_all(climb.flip(ops) for ops in classes)

    def _cuts(self, problem: AssignProblem, climb: "Climb") -> None:
        names = [head.name for head in problem.task.heads]
        if "cut" in names:
            stored = climb.decision[:, climb.head] == 0
            ops = flip_order(problem, problem.task.mask(problem.graph)[:, names.index("cut")] & stored, self.order)
            climb.try_all([(int(op), names.index("cut"), 1)] for op in ops)

    def _flips(self, problem: AssignProblem, climb: "Climb") -> None:
        """All single ops first; then pairs and triples of neighbours in the order, until the budget ends."""
        ops = flip_order(problem, climb.free, self.order)
        while problem.open and len(ops):
            climb.try_all(climb.flip(ops[i : i + 1]) for i in range(len(ops)))
            for size in range(2, LARGEST_FLIP + 1):
                picks = (problem.rng.choice(len(ops), min(size, len(ops)), replace=False) for _ in range(len(ops)))
                climb.try_all(climb.flip(ops[pick]) for pick in picks)

    def _masks(self, problem: AssignProblem, climb: "Climb") -> None:
        free, count = np.flatnonzero(climb.free), problem.task.heads[climb.head].count
        made = []
        for k in range(MASKS):
            drawn, decision = free[problem.rng.random(len(free)) < (k + 1) / MASKS], problem.initial.copy()
            decision[drawn, climb.head] = problem.rng.integers(0, count, len(drawn))
            made.append(decision)
        self._sampled(climb, made)

    def _near(self, problem: AssignProblem, climb: "Climb") -> None:
        found: dict[bytes, Decision] = {problem.initial.tobytes(): problem.initial}
        mask, names = problem.task.mask(problem.graph), [other.name for other in problem.task.heads]
        known = [climb.fusion(rule.ops, rule.choice) for rule in rules(problem.graph, climb.free)]
        for changes in [*single_knobs(problem), *known]:
            decision = changed(problem.initial, changes)
            if decision is not None:
                found.setdefault(decision.tobytes(), decision)
        for k in range(8 * NEAR if climb.free.any() else 0):
            column = names.index("cut") if k % 4 == 3 and "cut" in names else climb.head
            free = np.flatnonzero(mask[:, column])
            ops = problem.rng.choice(free, min(1 + k % LARGEST_FLIP, len(free)), replace=False)
            decision = problem.initial.copy()
            decision[ops, column] = np.where(decision[ops, column] > 0, 0, 1)
            found.setdefault(decision.tobytes(), decision)
        self._sampled(climb, [*found.values()][1 : NEAR + 1])

    def _sampled(self, climb: "Climb", decisions: Sequence[Decision]) -> None:
        for i in range(0, len(decisions), self.batch):
            climb.problem.cost(np.stack(decisions[i : i + self.batch]))


Changes = Sequence[tuple[int, int, int]]
"""(op, head, choice) of each slot that becomes another."""


class OnlySpare(Exception):
    """The evaluations that are left are those for taking back."""


class Climb:
    """The best decision so far, and the gains of single changes of the default."""

    def __init__(self, problem: AssignProblem, batch: Few, margin: Share) -> None:
        self.problem, self.batch, self.margin = problem, batch, margin
        self.decision, self.score = problem.initial, problem.initial_cost
        self.head = problem.task.column(Role.FUSION)
        self.free: Bool = problem.task.mask(problem.graph)[:, self.head]
        self._gain: list[tuple[float, Changes]] = []
        self._priced, self._spares = set[bytes](), True

    def fusion(self, ops: I64, choice: int) -> Changes:
        return [(int(op), self.head, choice) for op in ops]

    def flip(self, ops: I64) -> Changes:
        """The other choice of each, of the decision as it is now."""
        return [(int(op), self.head, 1 - min(1, int(self.decision[op, self.head]))) for op in ops]

    def alone(self, changes: Iterable[Changes]) -> None:
        """Prices each change of the default; the best of them is taken if it is better than the best decision."""
        for some in _batches(changes, self.batch):
            self.price(self.problem.initial, some)

    def try_all(self, changes: Iterable[Changes]) -> None:
        """Prices changes of the best decision, batch by batch, and takes those that help, several together."""
        for some in _batches(changes, self.batch):
            base = self.decision
            helped = self.price(base, some)
            if len(helped) > 1:
                self.price(base, [[slot for part in helped for slot in part]])

    def helpful(self) -> list[Changes]:
        """The changes of the default that helped alone, the best first."""
        return [changes for gain, changes in sorted(self._gain, key=lambda pair: -pair[0])]

    def price(self, base: Decision, changes: Sequence[Changes]) -> list[Changes]:
        """Prices changes of a decision together, and takes the best; those that are better than the best was before."""
        new = [(part, made) for part in changes if (made := changed(base, part)) is not None]
        if not new:
            return []
        before = self.score
        costs = self.measure(np.stack([made for _, made in new]))
        if base is self.problem.initial:
            gains = 1.0 - costs / self.problem.initial_cost
            self._gain += [(gain, part) for gain, (part, _) in zip(gains.tolist(), new) if gain > self.margin]
        return [part for cost, (part, _) in zip(costs, new) if cost < before * (1.0 - self.margin)]

    def measure(self, decisions: Decisions) -> F64:
        """Prices decisions [P, N, H] together, and takes the best of them if it is better than the best so far. Prices
        fewer, and at last raises OnlySpare, where evaluations are to be left for taking back."""
        spare = min(len(self._parts()) + 1, self.problem.evals_cap // SPARE) if self._spares else 0
        if spare > 1:
            decisions = decisions[: max(0, self.problem.remaining - spare)]
            if not len(decisions):
                raise OnlySpare
        self._priced.update(decision.tobytes() for decision in decisions)
        costs = self.problem.cost(decisions)
        best = int(np.argmin(costs))
        if costs[best] < self.score * (1.0 - self.margin):
            self.decision, self.score = decisions[best], float(costs[best])
        return costs

    def take_back(self) -> None:
        """Prices the best decision without each of its parts, then without all that it is no slower without."""
        parts, self._spares = self._parts(), False
        best, score, initial = self.decision, self.score, self.problem.initial
        fresh = [part for part in parts if np.where(part, initial, best).tobytes() not in self._priced]
        fresh = fresh[: max(0, self.problem.remaining - 1)]
        if fresh:
            costs = self.measure(np.stack([np.where(part, initial, best) for part in fresh]))
            idle = [part for part, cost in zip(fresh, costs) if cost <= score * (1.0 + self.margin)]
            if len(idle) > 1 and self.problem.open:
                self.measure(np.where(np.any(idle, 0), initial, best)[None])

    def _parts(self) -> list[Bool]:
        """[N, H] slots in which the best decision differs from the default: each knob, then the ops of each class of
        alike ones. Of one part alone nothing is left to ask, since without it the decision is the default."""
        differs = self.decision != self.problem.initial
        knobs, column = knob_columns(self.problem), np.arange(differs.shape[1])
        parts = [differs & (column == knob) for knob in knobs]
        ops = differs & ~np.isin(column, knobs)
        graph, left = self.problem.graph, ops.any(1)
        for of in next(alike(graph, left, 0), []):
            parts.append(ops & np.isin(np.arange(graph.num_ops), of)[:, None])
            left = left & ~np.isin(np.arange(graph.num_ops), of)
        parts += [ops & (np.arange(graph.num_ops) == op)[:, None] for op in np.flatnonzero(left)]
        found = [part for part in parts if part.any()]
        return found if len(found) > 1 else []


def changed(base: Decision, changes: Changes) -> Decision | None:
    """None where nothing changes."""
    out = base.copy()
    for op, head, choice in changes:
        out[op, head] = choice
    return None if np.array_equal(out, base) else out


def _batches(changes: Iterable[Changes], size: int) -> Iterator[list[Changes]]:
    """Of `size`, the last one smaller."""
    held: list[Changes] = []
    for change in changes:
        held.append(change)
        if len(held) == size:
            yield held
            held = []
    if held:
        yield held


def knob_columns(problem: AssignProblem) -> list[int]:
    """Heads whose choice is made once, at the first op, for the whole graph."""
    counts = problem.task.counts(problem.graph)
    return [column for column, head in enumerate(problem.task.heads)
            if head.role is Role.CHOICE and counts[0, column] > 1 and not (counts[1:, column] > 1).any()]  # fmt: skip


def single_knobs(problem: AssignProblem) -> list[Changes]:
    """Every value of every knob but the default's."""
    heads: Sequence[Head] = problem.task.heads
    return [[(0, column, choice)] for column in knob_columns(problem) for choice in range(1, heads[column].count)]


def flip_order(problem: AssignProblem, free: Bool, order: Order) -> I64:
    """Ops with a choice that several others read, those first that are read most; without any, all with a choice."""
    graph, readers = problem.graph, reader_counts(problem.graph)
    shared = free & (readers > 1)
    ops = np.flatnonzero(shared if shared.any() else free)
    if order == "random":
        return problem.rng.permutation(ops)
    return ops[np.argsort(-(graph.result_bytes * readers)[ops], kind="stable")]
