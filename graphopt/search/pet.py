"""`pet`: rewriting with partially equivalent transformations (Wang et al., PET, OSDI 2021).

As `taso` over whole programs, where beside the rules every convolution and matrix product may be mutated, up to `depth`
of them on the way to a program (graphopt/rewrite/partial.py). What a mutant puts around an operation (transposes,
reshapes, splits, concatenations) is there for rules to remove.

PET mutates small subgraphs and combines them; here mutants are of one operation at a time, and combinations come from
the search. PET's corrections are fused kernels; here they are strips of the original convolution, concatenated.
"""

from collections.abc import Iterator
from itertools import chain

from graphopt.rewrite.neighbours import num_ops
from graphopt.rewrite.partial import mutants
from graphopt.rewrite.terms import reachable, substitute
from graphopt.rewrite_problem import Point, RewriteProblem
from graphopt.search.taso import Taso, Way

MARK = "pet_"  # before the name of a mutation among the rules of a program


class Pet(Taso):
    """alpha, pops: as in `taso`. depth: mutations on the way to a program at most (PET's MUTATION_DEPTH is 5)."""

    def __init__(self, *, name: str, alpha: float, pops: int, depth: int) -> None:
        if depth < 0:
            raise ValueError(f"depth={depth} must be at least 0")
        super().__init__(name=name, alpha=alpha, pops=pops)
        self.depth = depth

    def ways(self, problem: RewriteProblem, point: Point) -> Iterator[Way]:
        """Where rules and mutations lead from a program."""
        by_rules = super().ways(problem, point)
        if sum(rule.startswith(MARK) for rule in point.rules) >= self.depth:
            return by_rules
        others = mutated(problem, point)
        return chain(by_rules, (Way(p.cost, p.ops, problem.digest(p), p, None) for p in others))


def mutated(problem: RewriteProblem, point: Point) -> Iterator[Point]:
    """Every operation of a program mutated alone; each program is priced."""
    terms = problem.terms
    live = reachable(terms, point.outputs)
    for term in live:
        for mutant in mutants(terms, term):
            outputs = substitute(terms, point.outputs, live, {term: mutant.term})
            now = reachable(terms, outputs)
            rules = (*point.rules, MARK + mutant.name)
            yield Point(outputs, rules, problem.cost(outputs, rules, now), num_ops(terms, now))
