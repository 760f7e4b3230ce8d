"""Progressive search (LAF, section 4.3): mutate the neighbourhood of an op, keep the better. Guided or not.

One engine for both: who picks the op is a `MutationPolicy`. Uniform picks make the paper's random search,
`algo=laf_unguided`; a learned model makes `algo=laf`. How a neighbourhood is mutated is our choice, see `mutated`.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import numpy as np

from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.decisions import Decision
from graphopt.problems.optimizer import Optimizer
from graphopt.search.walks.moves import Slots, Walk, neighbourhood, other_choice, scores, slots_of, start_walk
from graphopt.utils.ranges import Between, Share, Whole


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How the search moves.

    start: the default (`initial`), a `random` decision, or the best of the default and of the same choice everywhere
    (`constant`, which the paper does not have: one evaluation per choice of every head).
    """

    start: Literal["initial", "random", "constant"]
    hops: Whole  # k: radius of the mutated neighbourhood; 0: the op alone
    change: Share  # probability that a slot of the neighbourhood is redrawn
    centre: Literal["changed", "free"]  # the op itself always changes, or as its neighbours do
    # Candidates per step; the best of them is compared with the current decision (the paper: 1).
    batch: Annotated[int, Between(1, 100_000)]


class MutationPolicy(Protocol):
    """Where to mutate, and what it learns from that."""

    def pick(self, decision: Decision) -> tuple[int, int | None]:
        """A slot (an index into `Slots`) and the choice it should take; None: any other."""

    def extend(self, candidate: Decision) -> None:
        """May change further slots of a candidate before it is priced."""

    def learn(self, decision: Decision, slot: int, choice: int, change: float, accepted: bool) -> None:
        """The mutation of `decision` that gave `slot` this choice changed the score by `change`."""


class Uniform:
    """Every configurable op equally often: no model."""

    def __init__(self, problem: AssignProblem, slots: Slots) -> None:
        self._rng, self._slots, self._ops = problem.rng, slots, np.unique(slots.op)

    def pick(self, decision: Decision) -> tuple[int, int | None]:
        op = self._ops[self._rng.integers(len(self._ops))]
        return int(self._rng.integers(self._slots.first[op], self._slots.first[op + 1])), None

    def extend(self, candidate: Decision) -> None:
        """Nothing without a model."""

    def learn(self, decision: Decision, slot: int, choice: int, change: float, accepted: bool) -> None:
        """Nothing without a model."""


class ProgressiveSearch(Optimizer):
    """The engine without a model."""

    def __init__(self, *, name: str, steps: Steps) -> None:
        self.name, self.steps = name, steps

    def solve(self, problem: AssignProblem) -> None:
        slots = slots_of(problem)
        if len(slots) and problem.open:
            walk = first_walk(problem, slots, self.steps.start)
            progressive_search(problem, slots, walk, Uniform(problem, slots), self.steps)


def first_walk(problem: AssignProblem, slots: Slots, start: Literal["initial", "random", "constant"]) -> Walk:
    """The walk of a search from `Steps.start`; what it prices is billed."""
    if start != "constant":
        return start_walk(problem, slots, start, deltas=False)
    counts = [head.count for head in problem.task.heads]
    wanted = [(head, choice) for head, count in enumerate(counts) for choice in range(count)][: problem.remaining]
    decisions = np.repeat(problem.initial[None], len(wanted), 0)
    for decision, (head, choice) in zip(decisions, wanted):
        mine = slots.head == head
        decision[slots.op[mine], head] = np.minimum(choice, slots.choices[mine] - 1)
    found = scores(problem, decisions)
    best = int(np.argmin(found))
    if found[best] < problem.initial_cost:
        return Walk(problem, decisions[best], float(found[best]), deltas=False)
    return start_walk(problem, slots, "initial", deltas=False)


def progressive_search(problem: AssignProblem, slots: Slots, walk: Walk, guide: MutationPolicy, steps: Steps) -> None:
    """Runs until the budget ends. Accepts what is not worse."""
    while problem.open:
        picks, candidates = [], []
        for _ in range(min(steps.batch, problem.remaining)):
            slot, wanted = guide.pick(walk.decision)
            candidate = mutated(problem, slots, walk.decision, slot, wanted, steps)
            guide.extend(candidate)
            picks.append(slot)
            candidates.append(candidate)
        found = scores(problem, np.stack(candidates))
        best, before, here = int(np.argmin(found)), walk.score, walk.decision
        accepted = bool(found[best] <= before)
        if accepted:
            walk.move_to(candidates[best], float(found[best]))
        for i, slot in enumerate(picks):
            choice = int(candidates[i][slots.op[slot], slots.head[slot]])
            guide.learn(here, slot, choice, float(found[i] - before), accepted and i == best)


def mutated(problem: AssignProblem, slots: Slots, current: Decision, centre: int, choice: int | None,
            steps: Steps) -> Decision:  # fmt: skip
    """Every slot within `hops` of the centre's op is redrawn uniformly with probability `change`. The centre changes to
    any other choice: always, or, where it is `free`, only if nothing else has changed. With `choice` given the centre
    takes it, and nothing else changes."""
    candidate, rng = current.copy(), problem.rng
    op, head = int(slots.op[centre]), int(slots.head[centre])
    if steps.hops and choice is None:
        near = neighbourhood(problem.graph, op, steps.hops)
        rows = slots.of_ops(near)
        rows = rows[rng.random(len(rows)) < steps.change]
        candidate[slots.op[rows], slots.head[rows]] = rng.integers(0, slots.choices[rows])
    if choice is None and steps.centre == "free" and (candidate != current).any():
        return candidate
    now = int(current[op, head])
    candidate[op, head] = other_choice(rng, now, int(slots.choices[centre])) if choice is None else choice
    return candidate
