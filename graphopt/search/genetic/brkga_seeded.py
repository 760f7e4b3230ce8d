"""`brkga_seeded`: BRKGA whose first population holds the plans of all heuristics; all other draws are uniform."""

from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.genetic.brkga import Evolution, evolve, priced_by, uniform_keys
from graphopt.search.heuristics.starts import heuristic_keys


class BrkgaSeeded(Optimizer):
    """A peer for learned proposals: what heuristics know, without learning. yaml: conf/algo/brkga_seeded.yaml."""

    def __init__(self, *, name: str, evolution: Evolution) -> None:
        self.name, self.evolution = name, evolution

    def solve(self, problem: AssignProblem) -> None:
        keys = problem.task.key_count(problem.graph)
        if keys and problem.open:
            seeds = heuristic_keys(problem)
            evolve(priced_by(problem), uniform_keys(keys), problem.rng, self.evolution, seeds=seeds)
