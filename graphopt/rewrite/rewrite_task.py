"""The contract of tasks that rewrite: a decision is an equivalent program, what verified rules make of the original."""

from abc import abstractmethod

from graphopt.core.graph import Graph
from graphopt.core.plan import Plans
from graphopt.problems.cost_model import CostModel
from graphopt.problems.task import Task
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.rewrite_problem import RewriteProblem
from graphopt.rewrite.rewritten import Rewritten
from graphopt.rewrite.rules.rule import RuleSet


class RewriteTask(Task):
    """Programs that rules lead to."""

    noun = "a task that rewrites the graph"
    needs = frozenset({"terms"})
    decided = Rewritten
    makes_programs = True
    rules: RuleSet
    growth: float  # programs of more than this many times the original's ops are not looked at
    export: bool  # write the best program of an ONNX model as one

    @abstractmethod
    def initial(self, graph: Graph) -> Program:
        """The program as it was given."""

    @abstractmethod
    def realise(self, graph: Graph, program: Program) -> Plans:
        """The plan of a program equivalent to the graph's: a batch of one, of its own rewritten graph."""

    def open(self, graph: Graph, cost: CostModel, *, evals: int, seconds: float = float("inf"),
             seed: int = 0) -> RewriteProblem:  # fmt: skip
        return RewriteProblem(graph, self, cost, evals=evals, seconds=seconds, seed=seed)
