"""`remeasured`: any search over programs by an additive model, whose cheapest programs are priced by what the problem
asks for."""

from typing import Literal

from graphopt.core.machine import Machine
from graphopt.core.utils.marks import Count, Few
from graphopt.hardware.costs.whole_program import Profiled
from graphopt.hardware.measure.target import Measuring
from graphopt.problems.cost_model import CostModel
from graphopt.rewrite.program_cost import Flops
from graphopt.rewrite.rewrite_problem import RewriteProblem, Rewriter, cheapest_by

ALONE = Measuring(  # as in cost=profiled
    device="cpu", threads=1, block_seconds=0.003, blocks=7, spread=0.05, op_seconds=0.2, limit_seconds=60
)


class Remeasured(Rewriter):
    """What is between an additive model and a method that is rewarded by measured prices: this has as many measured
    prices, and no more than that. TASO and Tensat were published without.

    search: any rewriter. additive: by whose sums it searches, `roofline` of the machine's first device, or `measured`:
    the problem's ops, one by one, which is not billed. evals: of its own; they are not billed. kept: how many of its
    programs are priced, the cheapest first; of those of one price, one.
    """

    def __init__(self, *, name: str, machine: Machine, search: Rewriter, additive: Literal["roofline", "measured"],
                 evals: Count, kept: Few) -> None:  # fmt: skip
        self.name, self.search, self.evals, self.kept = name, search, evals, kept
        self.additive: CostModel = Flops(name="flops", machine=machine)
        if additive == "measured":
            self.additive = Profiled(name="profiled", table=None, environment=None, measuring=ALONE)

    def solve(self, problem: RewriteProblem) -> None:
        found = cheapest_by(self.search, self.additive, problem, self.evals, self.kept)
        problem.costs([one.state for one in found[: problem.remaining]])
