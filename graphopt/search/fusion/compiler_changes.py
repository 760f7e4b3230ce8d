"""What is worth asking of a compiler next: changes of a decision, many at once.

Shape legend: N ops, H heads, P decisions.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np

from graphopt.core.graph import F64
from graphopt.core.knobs import KNOBS
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.decisions import Decision, Decisions
from graphopt.search.fusion.compiler_rules import rules
from graphopt.search.fusion.compiler_search import Changes, Climb, changed, knob_columns, single_knobs
from graphopt.search.walks.motifs import motifs

SIZES = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)  # ops that are simulated to help, together
LEAST = 1e-4  # relative, of a simulated time that helps
COMPILES = frozenset(knob.name for knob in KNOBS if knob.compiles)
HOPS = 3  # around ops that look alike


def candidates(problem: AssignProblem, climb: Climb, simulated: Callable[[Decisions], F64],
               come: int = 0) -> list[Decision]:  # fmt: skip
    """Changes of the best decision: single knobs, those of how source is compiled first, after the `come` ones that
    came before; rules, classes of alike ops, and sets of ops whose flips are simulated to help most; rules and sets
    with each knob; settings of all knobs; single flips."""
    knobs = sorted(single_knobs(problem), key=lambda part: problem.task.heads[part[0][1]].name not in COMPILES)
    knobs = [*knobs[come % len(knobs) :], *knobs[: come % len(knobs)]] if knobs else []
    wholes: list[Changes] = [climb.fusion(rule.ops, rule.choice) for rule in rules(problem.graph, climb.free)]
    flips = [climb.flip(np.array([op])) for op in np.flatnonzero(climb.free)]
    wholes += _helpful(climb, flips, simulated)
    classes = [climb.flip(ops) for of in motifs(problem.graph, climb.free, HOPS) for ops in of]
    with_knobs = ([*whole, *knob] for whole, knob in product(wholes, knobs))
    parts = [*knobs, *wholes, *classes, *with_knobs, *_settings(problem), *flips]
    return [made for part in parts if (made := changed(climb.decision, part)) is not None]


def _helpful(climb: Climb, flips: Sequence[Changes], simulated: Callable[[Decisions], F64]) -> Iterator[Changes]:
    """The flips that help most alone, together."""
    made = [(part, decision) for part in flips if (decision := changed(climb.decision, part)) is not None]
    if not made:
        return
    times = simulated(np.stack([climb.decision, *(decision for _, decision in made)]))
    order = np.argsort(times[1:], kind="stable")
    helpful = [made[i][0] for i in order.tolist() if times[1 + i] < times[0] * (1 - LEAST)]
    for size in dict.fromkeys(min(size, len(helpful)) for size in SIZES):
        yield [slot for part in helpful[:size] for slot in part]


def _settings(problem: AssignProblem) -> Iterator[Changes]:
    """All settings of all knobs."""
    columns = knob_columns(problem)
    for setting in product(*(range(problem.task.heads[column].count) for column in columns)):
        yield [(0, column, choice) for column, choice in zip(columns, setting, strict=True)]
