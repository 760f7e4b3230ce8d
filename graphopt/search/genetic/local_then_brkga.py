"""`local_then_brkga`: local search on random keys, then BRKGA whose first population holds what that has found; all
other draws are uniform. The peer without learning that REGAL has to beat on real graphs."""

from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.genetic.brkga import Evolution, evolve, priced_by, uniform_keys
from graphopt.search.walks.regal_local import RegalLocal
from graphopt.utils.ranges import Count


class LocalThenBrkga(Optimizer):
    """The first `local_evals` evaluations are the local search's. yaml: conf/algo/local_then_brkga.yaml."""

    def __init__(self, *, name: str, local: RegalLocal, local_evals: Count, evolution: Evolution) -> None:
        self.name, self.local, self.local_evals, self.evolution = name, local, local_evals, evolution

    def solve(self, problem: AssignProblem) -> None:
        keys = problem.task.key_count(problem.graph)
        if keys and problem.open:
            for found in self.local.bests(problem):
                best = found
                if problem.evals >= self.local_evals:
                    break
            evolve(priced_by(problem), uniform_keys(keys), problem.rng, self.evolution, seeds=best[None])
