"""Progressive search (LAF, section 4.3): mutate the neighbourhood of an op, keep the better. Guided or not.

One engine for both: who picks the op is a `MutationPolicy`. Uniform picks make the paper's random search,
`algo=laf_unguided`; a learned model makes `algo=laf`. How a neighbourhood is mutated is our choice, see `mutated`.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from graphopt.core.plan import Decision
from graphopt.core.utils.marks import Share, Whole
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.walks.moves import Slots, Walk, neighbourhood, other_choice, scores, slots_of, start_walk


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How the search moves."""

    start: Literal["initial", "random"]  # the default, or a random decision
    hops: Whole  # k: radius of the mutated neighbourhood; 0: the op alone
    change: Share  # probability that a slot of the neighbourhood is redrawn
    centre: Literal["changed", "free"]  # the op itself always changes, or as its neighbours do


class MutationPolicy(Protocol):
    """Where to mutate, and what it learns from that."""

    def pick(self, decision: Decision) -> tuple[int, int | None]:
        """A slot (an index into `Slots`) and the choice it should take; None: any other."""

    def learn(self, decision: Decision, slot: int, choice: int, change: float, accepted: bool) -> None:
        """The mutation of `decision` that gave `slot` this choice changed the score by `change`."""


class Uniform:
    """Every configurable op equally often: no model."""

    def __init__(self, problem: AssignProblem, slots: Slots) -> None:
        self._rng, self._slots, self._ops = problem.rng, slots, np.unique(slots.op)

    def pick(self, decision: Decision) -> tuple[int, int | None]:
        op = self._ops[self._rng.integers(len(self._ops))]
        return int(self._rng.integers(self._slots.first[op], self._slots.first[op + 1])), None

    def learn(self, decision: Decision, slot: int, choice: int, change: float, accepted: bool) -> None:
        """Nothing without a model."""


class ProgressiveSearch(Optimizer):
    """The engine without a model."""

    def __init__(self, *, name: str, steps: Steps) -> None:
        self.name, self.steps = name, steps

    def solve(self, problem: AssignProblem) -> None:
        slots = slots_of(problem)
        if len(slots) and problem.open:
            walk = start_walk(problem, slots, self.steps.start)
            progressive_search(problem, slots, walk, Uniform(problem, slots), self.steps)


def progressive_search(problem: AssignProblem, slots: Slots, walk: Walk, guide: MutationPolicy, steps: Steps) -> None:
    """Runs until the budget ends. Accepts what is not worse."""
    while problem.open:
        slot, wanted = guide.pick(walk.decision)
        candidate = mutated(problem, slots, walk.decision, slot, wanted, steps)
        score, before, here = float(scores(problem, candidate[None])[0]), walk.score, walk.decision
        if score <= before:
            walk.move_to(candidate, score)
        choice = int(candidate[slots.op[slot], slots.head[slot]])
        guide.learn(here, slot, choice, score - before, score <= before)


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
