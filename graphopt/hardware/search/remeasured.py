"""`remeasured`: any search over programs by an additive model, whose cheapest programs are priced by the problem's cost
model."""

from typing import Literal

from graphopt.core.machine import Machine
from graphopt.core.utils.marks import Count, Few
from graphopt.hardware.costs.whole_program import ALONE, Profiled, Runtime
from graphopt.problems.cost_model import CostModel
from graphopt.rewrite.program_cost import Flops
from graphopt.rewrite.rewrite_problem import RewriteProblem, Rewriter, cheapest_by


class Remeasured(Rewriter):
    """The peer of a method that is rewarded by measured prices: an additive model with as many measured prices. TASO
    and Tensat were published without.

    search: any rewriter. additive: by whose sums it searches. `roofline` is of the machine's first device. `measured`
    runs the problem's ops one by one in torch, `onnxruntime` there. Neither these nor its own `evals` are billed. kept:
    how many of its programs are priced, the cheapest first; of those of one price, one.
    """

    def __init__(self, *, name: str, machine: Machine, search: Rewriter,
                 additive: Literal["roofline", "measured", "onnxruntime"], evals: Count,
                 kept: Few) -> None:  # fmt: skip
        self.name, self.search, self.evals, self.kept = name, search, evals, kept
        self.additive: CostModel = Flops(name="flops", machine=machine)
        if additive != "roofline":
            runtime: Runtime = "torch" if additive == "measured" else "onnxruntime"
            self.additive = Profiled(name=additive, runtime=runtime, table=None, environment=None, measuring=ALONE)

    def solve(self, problem: RewriteProblem) -> None:
        found = cheapest_by(self.search, self.additive, problem, self.evals, self.kept)
        problem.costs([one.state for one in found[: problem.remaining]])
