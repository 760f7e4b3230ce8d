"""`segments`: the forward pass cut into segments by every threshold, then single saves taken back or moved."""

import numpy as np
from numpy.typing import NDArray

from graphopt.core.plan import Decision
from graphopt.core.split import step_of
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.problems.tasks.recomputing import Recompute
from graphopt.search.recompute.saved_sets import REACH, segmented
from graphopt.search.walks.moves import scores

BATCH = 8  # neighbours that are priced together


class SegmentSearch(Optimizer):
    """For steps whose head `recompute` says what is saved: all sets of `segmented`, then the best of some neighbours of
    the best so far, until the budget ends. A neighbour flips an op, or swaps a saved op with one nearby."""

    accepts = (Recompute,)

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: AssignProblem) -> None:
        best, lowest = problem.initial, float(scores(problem, problem.initial[None])[0])
        starts = (saved[:, None].astype(np.int16) for saved in segmented(step_of(problem.graph)))
        for start in starts:
            score = float(scores(problem, start[None])[0])
            if score < lowest:
                best, lowest = start, score
        ops = np.flatnonzero(problem.task.mask(problem.graph)[:, 0])
        while problem.open and len(ops):
            near = np.stack([_neighbour(problem.rng, best, ops) for _ in range(BATCH)])
            found = scores(problem, near[: problem.remaining])
            if len(found) and found.min() <= lowest:
                best, lowest = near[int(found.argmin())], float(found.min())


def _neighbour(rng: np.random.Generator, decision: Decision, ops: NDArray[np.int64]) -> Decision:
    near = decision.copy()
    saved = np.flatnonzero(decision[ops, 0])
    place = int(rng.choice(saved)) if len(saved) and rng.random() < 2 / 3 else int(rng.integers(len(ops)))
    other = int(np.clip(place + rng.integers(-REACH, REACH + 1), 0, len(ops) - 1))
    near[ops[place], 0] ^= 1
    if decision[ops[place], 0] != decision[ops[other], 0] and rng.random() < 0.5:
        near[ops[other], 0] ^= 1
    return near
