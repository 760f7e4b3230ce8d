"""Searches by single changes, and without any model: `local`, `annealing`, `scan`, `random`.

Progressive search (LAF, section 4.3): mutate the neighbourhood of an op, keep the better. Guided or not.

One engine for both: who picks the op is a `MutationPolicy`. Uniform picks make the paper's random search,
`algo=laf_unguided`; a learned model makes `algo=laf`. How a neighbourhood is mutated is our choice, see `mutated`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import numpy as np

from graphopt.core.plan import Decision, Decisions
from graphopt.core.utils.marks import Between, Share, Whole
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.walks.moves import (
    INFEASIBLE,
    Slots,
    Start,
    Walk,
    batch_size,
    neighbourhood,
    other_choice,
    progress,
    scores,
    slots_of,
    start_walk,
    uniform,
)

NodePicker = Callable[[Decision], int]
"""Which configurable op to change next, given the current decision [N, H]."""


class LocalSearch(Optimizer):
    """Hill climbing: any op, any other choice, kept unless it is worse.

    hops: radius k of the mutated neighbourhood, as in LAF's search (0: the op alone).
    """

    def __init__(self, *, name: str, start: Start, hops: Whole) -> None:
        self.name, self.start, self.hops = name, start, hops

    def solve(self, problem: AssignProblem) -> None:
        slots = slots_of(problem)
        if len(slots) and problem.open:
            walk, ops = start_walk(problem, slots, self.start), np.unique(slots.op)
            local_search(problem, slots, walk, lambda _: int(ops[problem.rng.integers(len(ops))]), self.hops)


def local_search(problem: AssignProblem, slots: Slots, walk: Walk, pick: NodePicker, hops: int) -> None:
    """Runs until the budget ends; `pick` must return configurable ops. Accepts changes that are not worse."""
    while problem.open:
        op = pick(walk.decision)
        slot = int(problem.rng.integers(slots.first[op], slots.first[op + 1]))
        if hops > 0:
            candidate = _mutated(problem, slots, walk.decision, slot, hops)
            score = float(scores(problem, candidate[None])[0])
            if score <= walk.score:
                walk.move_to(candidate, score)
            continue
        head = int(slots.head[slot])
        choice = other_choice(problem.rng, int(walk.decision[op, head]), int(slots.choices[slot]))
        score = walk.price_one(op, head, choice)
        if score <= walk.score:
            walk.take(op, head, choice, score)


def _mutated(problem: AssignProblem, slots: Slots, current: Decision, centre: int, hops: int) -> Decision:
    """The centre slot changes; every other slot within `hops` of its op is redrawn uniformly."""
    candidate = current.copy()
    op, head = int(slots.op[centre]), int(slots.head[centre])
    rows = slots.of_ops(neighbourhood(problem.graph, op, hops))
    candidate[slots.op[rows], slots.head[rows]] = problem.rng.integers(0, slots.choices[rows])
    candidate[op, head] = other_choice(problem.rng, int(current[op, head]), int(slots.choices[centre]))
    return candidate


class Annealing(Optimizer):
    """Simulated annealing over single changes, Metropolis acceptance, geometric cooling over the budget.

    Every sweep proposes each slot once, in a new random order. The first sweep is greedy and collects the losses of
    worse changes; cooling starts after it. So up to one sweep of budget it descends as a scan does. hot: first
    temperature as a quantile of those losses (0..1). cold: last temperature / first.
    """

    def __init__(self, *, name: str, start: Start, hot: Share, cold: Annotated[float, Between(1e-12, 1.0)]) -> None:
        self.name, self.start, self.hot, self.cold = name, start, hot, cold

    def solve(self, problem: AssignProblem) -> None:
        slots = slots_of(problem)
        if not len(slots) or not problem.open:
            return
        walk = start_walk(problem, slots, self.start)
        steps = (_step(problem, walk, slots, int(slot), 0.0) for slot in problem.rng.permutation(len(slots)))
        losses = [loss for loss in steps if 0.0 < loss < INFEASIBLE]
        first = float(np.quantile(losses, self.hot)) if losses else 0.0
        begun = progress(problem)
        while problem.open:
            for slot in problem.rng.permutation(len(slots)):
                share = (progress(problem) - begun) / max(1e-9, 1.0 - begun)
                _step(problem, walk, slots, int(slot), first * self.cold**share)


def _step(problem: AssignProblem, walk: Walk, slots: Slots, slot: int, temperature: float) -> float:
    """Proposes one change; returns by how much it is worse (negative: better)."""
    op, head = int(slots.op[slot]), int(slots.head[slot])
    choice = other_choice(problem.rng, int(walk.decision[op, head]), int(slots.choices[slot]))
    score = walk.price_one(op, head, choice)
    loss = float(score - walk.score) if np.isfinite(walk.score) else -1.0
    if loss <= 0.0 or (temperature > 0.0 and problem.rng.random() < np.exp(-loss / temperature)):
        walk.take(op, head, choice, score)
    return loss


class Scan(Optimizer):
    """Random-permutation coordinate descent; ends early where no single change helps any more."""

    def __init__(self, *, name: str, start: Start) -> None:
        self.name, self.start = name, start

    def solve(self, problem: AssignProblem) -> None:
        slots = slots_of(problem)
        if len(slots) and problem.open:
            scan(problem, slots, start_walk(problem, slots, self.start))


def scan(problem: AssignProblem, slots: Slots, walk: Walk) -> None:
    """Sweeps all slots in random order and takes the best alternative of each, until no single change of the walk's
    decision helps, or the budget ends."""
    unchanged = 0  # slots tried since the last improvement
    while problem.open and unchanged < len(slots):
        for slot in problem.rng.permutation(len(slots)).tolist():
            op, head = int(slots.op[slot]), int(slots.head[slot])
            others = np.delete(np.arange(slots.choices[slot]), walk.decision[op, head])
            prices = walk.price(np.full(len(others), op), np.full(len(others), head), others)
            best, unchanged = int(np.argmin(prices)), unchanged + 1
            if prices[best] < walk.score:
                walk.take(op, head, int(others[best]), float(prices[best]))
                unchanged = 0


class RandomSearch(Optimizer):
    """Independent samples until the budget ends.

    change: probability that a slot is redrawn uniformly; 1 = uniform decisions, less = samples around the default. At
    least one slot of every sample is redrawn.
    """

    def __init__(self, *, name: str, change: Share) -> None:
        if not 0.0 < change <= 1.0:
            raise ValueError(f"change={change} must be in (0, 1]")
        self.name, self.change = name, change

    def solve(self, problem: AssignProblem) -> None:
        slots = slots_of(problem)
        while problem.open and len(slots):
            problem.cost(self._sample(problem, slots, batch_size(problem)))

    def _sample(self, problem: AssignProblem, slots: Slots, count: int) -> Decisions:
        """[count, N, H]"""
        drawn = uniform(problem, slots, count)
        if self.change == 1.0:
            return drawn
        keep = problem.rng.random((count, len(slots))) >= self.change
        keep[range(count), problem.rng.integers(0, len(slots), count)] = False
        initial, values = problem.initial[slots.op, slots.head], drawn[:, slots.op, slots.head]
        drawn[:, slots.op, slots.head] = np.where(keep, initial, values)
        return drawn


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How the search moves."""

    start: Literal["initial", "random"]  # the default, or a random decision
    hops: Whole  # k: radius of the mutated neighbourhood; 0: the op alone
    change: Share  # probability that a slot of the neighbourhood is redrawn
    centre: Literal["changed", "free"]  # the op itself always changes, or as its neighbours do


class MutationPolicy(Protocol):
    """Where to mutate, and how it learns from the results."""

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
    """Runs until the budget ends. Accepts changes that are not worse."""
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
