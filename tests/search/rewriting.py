"""Rewriting problems for tests: small programs, rules as text, the roofline of a GPU or a count of ops as the cost."""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from graphopt.config.construct import construct
from graphopt.core.graph import Graph
from graphopt.core.plan import Plans
from graphopt.costs.additive import Additive, Flops
from graphopt.costs.cost_model import CostModel, Prices
from graphopt.problems.metering import OutOfBudget
from graphopt.problems.optimizer import Rewriter
from graphopt.problems.rewrite_problem import RewriteProblem
from graphopt.rewrite.io.as_graph import graph_of, program_of
from graphopt.rewrite.ir import reference
from graphopt.rewrite.ir.terms import Program, reachable
from graphopt.rewrite.ir.vocabulary import Operation, TensorType
from graphopt.rewrite.rules.rule import RuleSet
from graphopt.rewrite.rules.steps import free
from graphopt.tasks.rewriting import Rewriting
from graphopt.utils import registry

MACHINE = construct(registry.option("machine", "gpu2"), "machine")
FLOPS = Flops(name="flops", machine=MACHINE)


class CountOps(CostModel):
    """One second per op that runs; not told per term, so that programs have to be made."""

    name, objective = "count", "runtime"

    def price(self, plans: Plans) -> Prices:
        ops = float(program_of(plans.graph).num_ops())
        return Prices(np.full(len(plans), ops), np.zeros(len(plans)))


class PerImage(Additive):
    """A second per image of more than two rows that is convolved, a hundredth for every other op."""

    name = "per_image"

    def op_seconds(self, operation: Operation, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float:
        images, _, rows, *_ = *inputs[0].shape, 0, 0, 0
        return float(images) if operation.name == "conv" and rows > 2 else 0.01


def problem_of(program: Program, rules: RuleSet, *, cost: CostModel = FLOPS, growth: float = 2.0, evals: int = 10**6,
               seed: int = 0) -> RewriteProblem:  # fmt: skip
    task = Rewriting(name="rewrite", machine=MACHINE, rules=["handwritten"], growth=growth, max_ops=64, max_inputs=16,
                     max_duplicates=8, export=False)  # fmt: skip
    task.rules = rules
    graph: Graph = graph_of(program, name="test")
    return RewriteProblem(graph, task, cost, evals=evals, seed=seed)


def solved(algo: Rewriter, problem: RewriteProblem) -> RewriteProblem:
    with suppress(OutOfBudget):
        algo.solve(problem)
    return problem


def algorithm(name: str, **changes: object) -> Rewriter:
    """An option of the algo group, with some of its values changed."""
    made = construct(registry.option("algo", name) | changes, "algo")
    assert isinstance(made, Rewriter)
    return made


def brute_force(problem: RewriteProblem) -> float:
    """The least cost over all programs that rules lead to through programs of fewer than `most_ops` ops."""
    assert problem.term_price is not None
    best, seen, stack = np.inf, {problem.initial.outputs}, [problem.initial.outputs]
    while stack:
        outputs = stack.pop()
        live = reachable(problem.terms, outputs)
        best = min(best, sum(map(problem.term_price, live)))
        for step in problem.neighbours.around(outputs, free).steps():
            after = problem.neighbours.apply(outputs, step.match)
            if after not in seen and problem.initial.with_outputs(after).num_ops() < problem.most_ops:
                seen.add(after)
                stack.append(after)
                assert len(seen) < 20_000
    return float(best)


def assert_equal_programs(before: Program, after: Program, seed: int = 0) -> None:
    """Both compute the same, on exact integers."""
    leaves = reference.random_leaves(before, np.random.default_rng(seed))
    results = (reference.run(p.terms, p.outputs, leaves) for p in (before, after))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
