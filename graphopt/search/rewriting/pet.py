"""`pet`: rewriting with partially equivalent transformations (Wang et al., PET, OSDI 2021).

As `taso` over whole programs, where beside the rules every convolution and matrix product may be mutated, up to `depth`
of them on the way to a program (graphopt/rewrite/generation/partial.py). What a mutant puts around an operation
(transposes, reshapes, splits, concatenations) is there for rules to remove.

PET mutates small subgraphs and combines them; here mutants are of one operation at a time, and combinations come from
the search. PET's corrections are fused kernels; here they are strips of the original convolution, concatenated.
"""

from collections.abc import Sequence

from graphopt.rewrite.generation.partial import mutants
from graphopt.rewrite.ir.terms import reachable
from graphopt.rewrite.rewrite_problem import Point, RewriteProblem
from graphopt.rewrite.rules.matching import Match
from graphopt.search.rewriting.taso import Taso
from graphopt.utils.ranges import AtLeastOne, Count, Whole

MARK = "pet_"  # before the name of a mutation among the rules of a program


class Pet(Taso):
    """alpha, pops: as in `taso`. depth: mutations on the way to a program at most (PET's MUTATION_DEPTH is 5)."""

    def __init__(self, *, name: str, alpha: AtLeastOne, pops: Count, depth: Whole) -> None:
        super().__init__(name=name, alpha=alpha, pops=pops)
        self.depth = depth
        self._mutants: dict[int, list[Match]] = {}  # of the problem that is being solved, by term

    def solve(self, problem: RewriteProblem) -> None:
        self._mutants = {}
        super().solve(problem)

    def others(self, problem: RewriteProblem, point: Point) -> Sequence[Match]:
        """Every operation of the program mutated alone."""
        if sum(rule.startswith(MARK) for rule in point.rules) >= self.depth:
            return ()
        return [match for term in reachable(problem.terms, point.outputs) for match in self._of(problem, term)]

    def _of(self, problem: RewriteProblem, term: int) -> list[Match]:
        if term not in self._mutants:
            self._mutants[term] = [
                problem.neighbours.found(MARK + mutant.name, (term,), (mutant.term,))
                for mutant in mutants(problem.terms, term)
            ]
        return self._mutants[term]
