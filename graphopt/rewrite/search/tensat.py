"""`tensat`: equality saturation (Yang et al., Tensat, MLSys 2021).

All rules add what they make to classes of equal terms, whatever it costs; then the cheapest program is extracted, by an
integer program that pays shared terms once, or greedily. It is priced, one evaluation. Rules of several outputs are
used in the first `k_multi` rounds only, since each round of them squares the number of programs.

Restarts are ours: saturation begins anew with the extracted program as long as that helps, so that merges build on
merges (k_multi larger than 1 is the paper's way, which keeps all useless merges, too).

The rules of the answer are those that made the nodes which were chosen, in the order in which they came. A rule that
merely says that two nodes are equal makes none.
"""

from dataclasses import dataclass, replace
from typing import Literal

from graphopt.core.errors import ConfigError
from graphopt.core.utils.marks import Positive, Whole
from graphopt.rewrite.egraphs.choosing import extractable
from graphopt.rewrite.egraphs.cycles import FILTERS
from graphopt.rewrite.egraphs.eclasses import TermClasses
from graphopt.rewrite.egraphs.ematching import LoopFinder
from graphopt.rewrite.egraphs.saturation import ExplorationLimits, Explorer
from graphopt.rewrite.extraction.extracting import exact_dag, greedy_dag, greedy_tree
from graphopt.rewrite.ir.terms import Outputs
from graphopt.rewrite.rewrite_problem import RewriteProblem, Rewriter, Rules
from graphopt.rewrite.rules.steps import Price


@dataclass(frozen=True, slots=True)
class Choosing:
    """How a program is extracted: `ilp` (cheapest with shared terms paid once, by an integer program), `greedy_dag`
    (the same bottom up), `greedy_tree` (Tensat's greedy one: shared terms are paid at every use).

    seconds: limit of `ilp`.
    """

    by: Literal["ilp", "greedy_dag", "greedy_tree"]
    seconds: Positive

    def extracted(self, classes: TermClasses, outputs: Outputs, price: Price, left: float) -> tuple[Outputs, Rules]:
        """The program of the classes, and the rules that made its terms, oldest first. left: seconds of the problem."""
        found = extractable(classes, outputs, price)
        if self.by == "ilp":
            choice = exact_dag(found.egraph, found.cost, max(0.0, min(self.seconds, left))).choice
        else:
            choice = (greedy_dag if self.by == "greedy_dag" else greedy_tree)(found.egraph, found.cost)
        program, nodes = found.program(classes, outputs, choice)
        makers = [classes.maker[node] for node in sorted(nodes, key=classes.born.__getitem__)]
        return program, tuple(dict.fromkeys(maker for maker in makers if maker))


class Tensat(Rewriter):
    """yaml: conf/algo/tensat.yaml. Needs a cost model that sums over ops."""

    needs_cost = frozenset({"prices of single ops"})

    def __init__(self, *, name: str, limits: ExplorationLimits, cycles: Literal["efficient", "vanilla", "allowed"],
                 extraction: Choosing, restarts: Whole) -> None:  # fmt: skip
        self.name, self.limits, self.cycles = name, limits, cycles
        self.extraction, self.restarts = extraction, restarts

    def solve(self, problem: RewriteProblem) -> None:
        price = problem.term_price
        if price is None:
            raise ConfigError(
                f"algo={self.name} needs a cost model that sums over ops: choose cost=flops or cost=profiled"
            )
        outputs, rules = problem.initial.outputs, Rules()
        for _ in range(1 + self.restarts):
            if not problem.open:
                return
            best = problem.best_cost
            outputs, made_by = self.improved(problem, outputs, price)
            rules += made_by
            if problem.cost(outputs, rules) >= best:
                return

    def improved(self, problem: RewriteProblem, outputs: Outputs, price: Price) -> tuple[Outputs, Rules]:
        """The cheapest program that saturation finds, and the rules that made what is new in it."""
        classes = TermClasses(problem.terms)
        classes.add_program(outputs)
        finder = LoopFinder(problem.task.rules, classes, static=False)
        limits = replace(self.limits, seconds=min(self.limits.seconds, problem.seconds_cap - problem.seconds))
        Explorer(problem.task.rules, classes, finder, FILTERS[self.cycles]).run(limits)
        return self.extraction.extracted(classes, outputs, price, problem.seconds_cap - problem.seconds)
