"""`hot_local`: local search on random keys that perturbs where the price is decided.

Of peak memory that are the ops whose results are live, or are read, where and when the peak is; of run time those on
the chain of kernels and transfers that ends last. A run that is simulated by a plain roofline says which
(`run_columns`); that is no evaluation. Of a batch of random moves (`weighted_moves`) the best is made unless it is
worse; where nothing was found for `patience` evaluations the search goes on from the best keys after `kick` such moves
at once.

With `modelled` it starts from what the same search finds among so many simulated runs, which are no evaluations
either; without, from the best of all heuristics, each of which is priced. What else a task decides stays as in the
first plan.

`perturb_policy` is the same search, told by a network where to perturb. Ours; REGAL (Paliwal et al., 2020) steers what
a genetic algorithm draws instead. Shape legend: K keys, N ops, F columns, M kinds of moves.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import F64
from graphopt.core.head import Role
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import Objective
from graphopt.problems.optimizer import Optimizer
from graphopt.problems.problem import OutOfBudget
from graphopt.search.genetic.brkga import F32, priced_by
from graphopt.search.walks.key_moves import first_plan
from graphopt.search.walks.regal_local import Moves
from graphopt.search.walks.run_columns import INDEX, RunColumns
from graphopt.search.walks.weighted_moves import KINDS, Drawn, WeightedMoves
from graphopt.utils.ranges import Count, Share, Whole

OBJECTIVES = frozenset[Objective]({"runtime", "peak_memory"})  # of which runs are simulated
HOT = {"runtime": ("critical",), "peak_memory": ("live", "held", "reads_live")}

Says = Callable[[AssignProblem, RunColumns, NDArray[np.float32]], F64]
"""(problem, where its columns are from, columns [N, F]) -> how much sooner than by chance each move is tried [M, N], of
any scale."""


@dataclass(frozen=True, kw_only=True)
class GuidedWalk:
    """conf/algo/hot_local.yaml explains them."""

    modelled: Whole
    batch: Count
    patience: Count
    kick: Count
    elsewhere: Share
    moves: Moves

    def hot(self, problem: AssignProblem, around: RunColumns, columns: NDArray[np.float32]) -> F64:
        """[M, N] 1 where the price is decided, `elsewhere` for all other ops."""
        decides = (columns[:, [INDEX[name] for name in HOT[problem.objective]]] > 0).any(1)
        return np.tile(np.where(decides, 1.0, self.elsewhere), (len(KINDS), 1))

    def search(self, problem: AssignProblem, says: Says) -> F32:
        """The best keys [K]; evaluations are spent until there are none."""
        walk = LocalWalk(problem, self, says)
        if self.modelled:
            modelled = LocalWalk(walk.columns.problem(self.modelled), self, says).from_heuristics()
            for _ in modelled.steps():
                pass
            walk.begin_with(modelled.best)
        elif problem.open:
            walk.from_heuristics()
        for _ in walk.steps():
            pass
        return walk.best


class GuidedLocal(Optimizer):
    """yaml: conf/algo/hot_local.yaml."""

    needs_one_of = frozenset({Role.DEVICE, Role.PRIORITY})
    objectives = OBJECTIVES

    def __init__(self, *, name: str, walk: GuidedWalk) -> None:
        self.name, self.walk = name, walk

    def solve(self, problem: AssignProblem) -> None:
        answered(problem, self.walk, self.walk.hot)


def answered(problem: AssignProblem, walk: GuidedWalk, says: Says) -> None:
    """Searches; without evaluations what was found among simulated runs is the answer, if there were any."""
    if problem.task.key_count(problem.graph) and (problem.open or walk.modelled):
        keys = walk.search(problem, says)
        if walk.modelled and not problem.evals_cap:
            problem.commit_keys(keys)


class TriedBatch(NamedTuple):
    """A batch of moves. keys: [K] from which they were made. cost: of these. moved: the moves. found: their costs."""

    keys: F32
    cost: float
    moved: Drawn
    found: F64


class LocalWalk:
    """The search on one problem."""

    def __init__(self, problem: AssignProblem, settings: GuidedWalk, says: Says) -> None:
        self._problem, self._settings, self._says = problem, settings, says
        self.columns, self._moves = RunColumns(problem), WeightedMoves(problem, settings.moves)
        self._price = priced_by(problem)
        self.best, self.cost = np.zeros(0, np.float32), np.inf

    def from_heuristics(self) -> "LocalWalk":
        """Starts from the best of them."""
        with contextlib.suppress(OutOfBudget):
            self.best, self.cost = first_plan(self._problem, "heuristic", self._price)
        return self

    def begin_with(self, keys: F32) -> None:
        """Starts from these [K]."""
        self.best = keys
        if self._problem.open:
            self.cost = float(self._price(keys[None])[0])

    def _weights(self, keys: F32) -> F64:
        return np.asarray(self._moves.base * self._says(self._problem, self.columns, self.columns.of(keys)))

    def steps(self) -> Iterator[TriedBatch]:
        """Until the budget ends, if anything can move."""
        if not np.isfinite(self.cost) or not self._moves.base.any():
            return
        keys, cost, since, rng, settings = self.best, self.cost, 0, self._problem.rng, self._settings
        with contextlib.suppress(OutOfBudget):
            weights = self._weights(keys)
            while True:
                moved = self._moves.drawn(weights, settings.batch, rng)
                batch = self._moves.made(keys, moved, rng)
                found = self._price(batch)
                yield TriedBatch(keys, cost, moved, found)
                winner, since = int(np.argmin(found)), since + settings.batch
                if found[winner] <= cost:
                    keys, cost = batch[winner], float(found[winner])
                    weights = self._weights(keys)
                if cost < self.cost:
                    self.best, self.cost, since = keys, cost, 0
                elif cost == self.cost:
                    self.best = keys
                if since >= settings.patience:
                    kicked = self._moves.drawn(self._weights(self.best), settings.kick, rng)
                    keys = self._moves.made(self.best, kicked, rng, together=True)[0]
                    cost, since, weights = float(self._price(keys[None])[0]), 0, self._weights(keys)
