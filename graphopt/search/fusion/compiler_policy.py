"""`compiler_policy`: what `compiler_search` would try one by one is lowered first, all of it, and measured in the order
of its predicted times; then the same around the best.

Predictions are those of `cost=learned`, fitted to measured plans of other graphs. Lowering takes a second a candidate,
compiling and timing several: so many candidates can be looked at for few evaluations. Candidates of one code are
measured once.

Shape legend: N ops, H heads, P candidates.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Annotated

import numpy as np

from graphopt.core.head import Role
from graphopt.costs.learned import Learned
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.decisions import Decision, Decisions
from graphopt.problems.optimizer import Optimizer
from graphopt.ranking.asked import asked_of
from graphopt.search.fusion.compiler_rules import rules
from graphopt.search.fusion.compiler_search import Changes, Climb, changed, flip_order, knob_columns, single_knobs
from graphopt.search.walks.motifs import motifs
from graphopt.utils.ranges import Between, Few, Workers

UNTOLD = 4  # one in so many is measured in the order of candidates: predictions may be wrong
Predicted = tuple[float, str]  # seconds, inf where it cannot be lowered; digest of the code
Predict = Callable[[AssignProblem, Decisions], Sequence[Predicted]]
"""Of decisions [P, N, H] about a problem's graph."""


class CompilerPolicy(Optimizer):
    """pool: candidates that are lowered in a round. each: evaluations of a round, the predicted fastest of the pool.
    batch, margin: as of `compiler_search`. weights, table, builders: as of `cost=learned`."""

    needs_roles = frozenset({Role.FUSION})
    needs = frozenset({"compiled_program"})

    def __init__(self, *, name: str, pool: Annotated[int, Between(1, 2000)], each: Few, batch: int, margin: float,
                 weights: str | None, table: str | None, builders: Workers) -> None:  # fmt: skip
        self.name, self.pool, self.each, self.batch, self.margin = name, pool, each, batch, margin
        model = Learned(name=name, weights=weights, table=table, environment=None, builders=builders, build_seconds=120)
        self.predict: Predict = predictions(model)

    def solve(self, problem: AssignProblem) -> None:
        climb, known, seen = Climb(problem, self.batch, self.margin), set[str](), set[bytes]()
        known.add(self.predict(problem, problem.initial[None])[0][1])
        while problem.open and (tried := self._fastest(problem, climb, known, seen)):
            self._measure(climb, tried)

    def _measure(self, climb: Climb, tried: Sequence[Changes]) -> None:
        """All from the same decision; where several help, these together."""
        base = climb.decision
        batches = (tried[i : i + self.batch] for i in range(0, len(tried), self.batch))
        helped = [part for batch in batches for part in climb.price(base, batch)]
        if len(helped) > 1:
            climb.price(base, [[slot for part in helped for slot in part]])

    def _fastest(self, problem: AssignProblem, climb: Climb, known: set[str], seen: set[bytes]) -> list[Changes]:
        """Of changes of the best decision the predicted fastest, and some as they come; one of each code that is not
        known, which then is. seen: decisions that were lowered before, which cost nothing."""
        found = self._pool(problem, climb, seen)
        if not found:
            return []
        parts = [part for part, _ in found]
        predicted = self.predict(problem, np.stack([made for _, made in found]))
        by_time = sorted(range(len(parts)), key=lambda i: predicted[i][0])
        chosen: dict[str, Changes] = {}
        for order, most in ((by_time, self.each - self.each // UNTOLD), (range(len(parts)), self.each)):
            for i in order:
                seconds, digest = predicted[i]
                if math.isfinite(seconds) and digest not in known and len(chosen) < most:
                    chosen.setdefault(digest, parts[i])
        known.update(chosen)
        return [*chosen.values()]

    def _pool(self, problem: AssignProblem, climb: Climb, seen: set[bytes]) -> list[tuple[Changes, Decision]]:
        """Candidates and what they make of the best decision; of those that were not seen before `pool` at most."""
        found, new = dict[bytes, tuple[Changes, Decision]](), 0
        for part in candidates(problem, climb):
            made = changed(climb.decision, part)
            if made is not None and (new < self.pool or made.tobytes() in seen):
                new += made.tobytes() not in seen
                seen.add(made.tobytes())
                found.setdefault(made.tobytes(), (part, made))
        return [*found.values()]


def predictions(model: Learned) -> Predict:
    """By a learned model."""

    def predict(problem: AssignProblem, decisions: Decisions) -> list[Predicted]:
        plans = problem.task.realise(problem.graph, decisions)
        lines = model.lowered(problem.graph, [asked_of(plans, b) for b in range(len(plans))])
        time = model.weights.model.of
        return [(math.inf, "") if "failure" in line else (time(line["features"]), line["digest"]) for line in lines]

    return predict


def candidates(problem: AssignProblem, climb: Climb) -> Iterator[Changes]:
    """Changes of the best decision: single knobs, rules, both together, flips of single ops, those that are read most
    first, classes of alike ops, and settings of all knobs."""
    knobs = single_knobs(problem)
    wholes = [climb.fusion(rule.ops, rule.choice) for rule in rules(problem.graph, climb.free)]
    yield from knobs
    yield from wholes
    yield from ([*whole, *knob] for whole, knob in product(wholes, knobs))
    ops = flip_order(problem, climb.free, "bytes")
    yield from (climb.flip(ops[i : i + 1]) for i in range(len(ops)))
    for classes in motifs(problem.graph, climb.free, 3):
        yield from (climb.flip(ops) for ops in classes)
    columns = knob_columns(problem)
    for setting in product(*(range(problem.task.heads[column].count) for column in columns)):
        yield [(0, column, choice) for column, choice in zip(columns, setting, strict=True)]
