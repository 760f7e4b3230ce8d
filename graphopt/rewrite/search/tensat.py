"""`tensat`: equality saturation (Yang et al., Tensat, MLSys 2021).

All rules add their terms to classes of equal terms, at any cost; then the cheapest program is extracted, by an integer
program that pays shared terms once, or greedily. It is priced, one evaluation. Rules of several outputs are used in the
first `k_multi` rounds only, since each round of them squares the number of programs.

Restarts are ours: saturation begins anew with the extracted program as long as that helps. So merges build on merges
(k_multi larger than 1 is the paper's way, which keeps all useless merges, too).

The rules of the answer are those that made the nodes which were chosen, in the order in which they came. A rule that
merely says that two nodes are equal makes none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from typing import Literal, NamedTuple

from graphopt.core.errors import ConfigError
from graphopt.core.utils.marks import Positive, Whole
from graphopt.rewrite.egraphs.eclasses import TermClasses
from graphopt.rewrite.egraphs.saturation import ExplorationLimits, Explorer
from graphopt.rewrite.extraction.extracting import exact_dag, greedy_dag, greedy_tree
from graphopt.rewrite.extraction.greedy import Egraph
from graphopt.rewrite.ir.terms import Outputs
from graphopt.rewrite.rewrite_problem import RewriteProblem, Rewriter, Rules
from graphopt.rewrite.rules.steps import Price


class PricedTerms(NamedTuple):
    """Classes of terms as an e-graph to extract from. cost, terms: [N] of each node."""

    egraph: Egraph
    cost: list[float]
    terms: list[int]


def priced(classes: TermClasses, outputs: Sequence[int], price: Price) -> PricedTerms:
    """Every node with its price alone."""
    place = {at: number for number, at in enumerate(classes.members)}
    terms = [term for members in classes.members.values() for term in members]
    class_of = [place[at] for at, members in classes.members.items() for _ in members]
    nodes: list[list[int]] = [[] for _ in place]
    for node, at in enumerate(class_of):
        nodes[at].append(node)
    children: list[Sequence[int]] = [[place[child] for child in classes.children[term]] for term in terms]
    roots = list(dict.fromkeys(place[classes.find(output)] for output in outputs))
    return PricedTerms(Egraph(nodes, children, class_of, roots), [price(term) for term in terms], terms)


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
        egraph, cost, terms = priced(classes, outputs, price)
        if self.by == "ilp":
            choice = exact_dag(egraph, cost, max(0.0, min(self.seconds, left))).choice
        else:
            choice = (greedy_dag if self.by == "greedy_dag" else greedy_tree)(egraph, cost)
        made = dict[int, int]()  # class -> its term in the program
        for at in TopologicalSorter({at: egraph.children[node] for at, node in choice.items()}).static_order():
            inputs = [made[child] for child in egraph.children[choice[at]]]
            made[at] = classes.terms.add(classes.operation[terms[choice[at]]], inputs)
        by_class = {classes.find(terms[choice[at]]): term for at, term in made.items()}
        chosen = sorted((terms[node] for node in choice.values()), key=classes.born.__getitem__)
        makers = dict.fromkeys(classes.maker[term] for term in chosen)
        return tuple(by_class[classes.find(o)] for o in outputs), tuple(maker for maker in makers if maker)


def additive_price(problem: RewriteProblem, name: str) -> Price:
    """The cost of each term by itself. Raises ConfigError for a cost model that prices whole plans alone."""
    if problem.alone_price is None:
        raise ConfigError(f"algo={name} needs prices of single ops: choose cost=flops, profiled, torch or onnxruntime")
    return problem.alone_price


class Tensat(Rewriter):
    """yaml: conf/algo/tensat.yaml. Needs prices of single ops; where whole programs are measured, these are of ops
    measured one by one, and the extracted program is priced whole."""

    needs_cost = frozenset({"prices of single ops"})

    def __init__(self, *, name: str, limits: ExplorationLimits, extraction: Choosing, restarts: Whole) -> None:
        self.name, self.limits, self.extraction, self.restarts = name, limits, extraction, restarts

    def solve(self, problem: RewriteProblem) -> None:
        price = additive_price(problem, self.name)
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
        """The cheapest program that saturation finds, and the rules that made its new terms."""
        classes = TermClasses(problem.terms)
        classes.add_program(outputs)
        limits = replace(self.limits, seconds=min(self.limits.seconds, problem.seconds_cap - problem.seconds))
        Explorer(problem.task.rules, classes).run(limits)
        return self.extraction.extracted(classes, outputs, price, problem.seconds_cap - problem.seconds)
