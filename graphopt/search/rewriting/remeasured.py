"""`remeasured`, `remeasured_...`: a search by an additive model, whose cheapest programs are priced by what the problem
asks for.

What is between an additive model and a method that is rewarded by measured prices: this has as many measured prices,
and no more than that. TASO and Tensat were published without.
"""

import contextlib

from graphopt.core.machine import Machine
from graphopt.costs.additive import Flops, Profiled
from graphopt.measure.target import Measuring
from graphopt.problems.cost_model import CostModel
from graphopt.problems.finalists import Candidate, Finalists
from graphopt.problems.problem import OutOfBudget
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.rewrite_problem import RewriteProblem
from graphopt.rewrite.rewriter import Rewriter
from graphopt.utils.ranges import Count, Few


class Remeasured(Rewriter):
    """search: any rewriter. measuring: how ops are measured alone, by whose sums it searches; None: it searches by the
    roofline of the machine's first device. evals: of its own; they are not billed. kept: how many of its programs are
    priced, the cheapest first; of those of one price, one."""

    def __init__(self, *, name: str, machine: Machine, search: Rewriter, measuring: Measuring | None, evals: Count,
                 kept: Few) -> None:  # fmt: skip
        self.name, self.search, self.evals, self.kept = name, search, evals, kept
        self.additive: CostModel = Flops(name="flops", machine=machine)
        if measuring is not None:
            self.additive = Profiled(name="profiled", table=None, environment=None, measuring=measuring)

    def solve(self, problem: RewriteProblem) -> None:
        found = cheapest_by(self.search, self.additive, problem, self.evals, self.kept)
        problem.costs([one.state for one in found[: problem.remaining]])


def cheapest_by(search: Rewriter, additive: CostModel, problem: RewriteProblem, evals: int, kept: int,
                ) -> list[Candidate]:  # fmt: skip
    """What a search by an additive model leaves of a problem: its cheapest programs with the model's prices, the
    cheapest first; of those of one price, one. evals: of its own, not billed."""
    graph = graph_of(problem.initial, name=problem.graph.name, family=problem.graph.family)
    inner = problem.task.open(graph, additive, evals=evals, seconds=problem.seconds_cap - problem.seconds,
                              seed=int(problem.rng.integers(2**31)))  # fmt: skip
    inner.finalists = finalists = Finalists(inner.solution, kept)
    with contextlib.suppress(OutOfBudget):
        search.solve(inner)
    return finalists.candidates
