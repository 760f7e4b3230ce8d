"""Tree search over e-graphs, and searches whose best programs are priced again."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from graphopt.core.errors import ConfigError
from graphopt.core.utils import registry
from graphopt.problems.cost_model import CostModel
from graphopt.problems.problem import OutOfBudget
from graphopt.rewrite.egraphs.eclasses import TermClasses
from graphopt.rewrite.egraphs.saturation import Explorer
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.ir import reference
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.models import build_model
from graphopt.rewrite.program_cost import Flops, ProgramCost
from graphopt.rewrite.rewrite_problem import RewriteProblem, Rewriter, Rewriting
from graphopt.rewrite.rules.parsing import load_rules
from graphopt.run.config.construct import construct

MACHINE = construct(registry.option("machine", "gpu2"), "machine")
FLOPS = Flops(name="flops", machine=MACHINE)
BERT = {"blocks": 2, "seq": 8, "width": 16, "heads": 2}


class Upside(ProgramCost):
    """Above a second the roofline's price counts the other way round; it is no sum over ops."""

    name, objective = "upside", "runtime"

    def price_program(self, program: Program) -> float:
        return 1.0 - FLOPS.price_program(program)


def problem_of(program: Program, *, cost: CostModel = FLOPS, evals: int = 10**6, rules: str = "handwritten",
               seed: int = 0) -> RewriteProblem:  # fmt: skip
    node = registry.option("task", "rewrite") | {"rules": [rules], "growth": 3.0}
    task: Rewriting = construct(node, "task", {"machine": MACHINE})
    return task.open(graph_of(program, name="test"), cost, evals=evals, seed=seed)


def algorithm(name: str, **changes: Any) -> Rewriter:
    made = construct(registry.option("algo", name) | changes, "algo", {"machine": MACHINE})
    assert isinstance(made, Rewriter)
    return made


def solved(algo: Rewriter, problem: RewriteProblem) -> RewriteProblem:
    with suppress(OutOfBudget):
        algo.solve(problem)
    return problem


def three_products() -> Program:
    b = ProgramBuilder()
    x = b.input((64, 64))
    return b.build(b.linear(x, 32), b.linear(x, 96), b.linear(x, 16))


def assert_equal_programs(before: Program, after: Program) -> None:
    leaves = reference.random_leaves(before, np.random.default_rng(0))
    for one, other in zip(*(reference.run(p.terms, p.outputs, leaves) for p in (before, after)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_tree_search_finds_what_saturation_finds() -> None:
    problem = solved(algorithm("mcts", simulations=12), problem_of(build_model("bert", BERT), evals=80))
    saturated = solved(algorithm("tensat"), problem_of(build_model("bert", BERT)))
    assert problem.best_cost <= saturated.best_cost < problem.initial_cost
    assert_equal_programs(problem.initial, problem.solution().decided.best)


def test_restarts_let_merges_build_on_merges() -> None:
    """An e-graph without room for both merges: beginning anew from the first one makes room."""
    few = {"nodes": 24, "simulations": 6}
    again, once = (
        solved(algorithm("mcts", **few, restart=restart), problem_of(three_products(), evals=60))
        for restart in (True, False)
    )
    assert again.best_cost <= once.best_cost < once.initial_cost
    assert_equal_programs(again.initial, again.solution().decided.best)


def test_it_ends_where_everything_was_tried() -> None:
    b = ProgramBuilder()
    nothing = b.build(b.op("tanh", inputs=(b.input((3,)),)))
    assert solved(algorithm("mcts"), problem_of(nothing)).evals < 40
    assert solved(algorithm("remeasured", search=registry.option("algo", "tensat")), problem_of(nothing)).evals <= 1


def test_costs_that_do_not_sum_over_ops_are_refused() -> None:
    with pytest.raises(ConfigError, match="algo=mcts needs a cost model that sums over ops"):
        algorithm("mcts").solve(problem_of(three_products(), cost=Upside()))


def test_a_saved_state_comes_back() -> None:
    """Rules applied after it, in between, leave no trace: the same rules make the same classes again."""
    program, rules = build_model("bert", BERT), load_rules("handwritten", "generated")
    classes = TermClasses(program.terms)
    classes.add_program(program.outputs)
    explorer = Explorer(rules, classes)
    size, state, numbers = len(classes), classes.state(), range(0, len(rules), 7)

    def grown() -> tuple[int, dict[str, list[int]]]:
        for number in numbers:
            explorer.apply_rule(number, 400, 10.0)
        return len(classes), {str(at): sorted(of) for at, of in classes.members.items()}

    first = grown()
    classes.restore(state)
    assert len(classes) == size < first[0]
    for number in list(numbers)[3:]:
        explorer.apply_rule(number, 300, 10.0)
    classes.restore(state)
    assert grown() == first


def test_the_cheapest_by_a_model_are_priced_again() -> None:
    """By a cost that is the wrong way round the worst of them wins; the inner search is not billed."""
    problem = solved(algorithm("remeasured", kept=4), problem_of(three_products(), cost=Upside(), evals=50))
    assert problem.evals <= 4
    assert problem.best_cost == problem.initial_cost  # none of the gains is one
    assert (
        solved(algorithm("remeasured", kept=4), problem_of(three_products(), evals=50)).best_cost < problem.initial_cost
    )


@pytest.mark.parametrize("additive", ["roofline", "measured"])
@pytest.mark.parametrize("name", ["taso", "tensat", "mcts", "rewrite_greedy", "rewrite_sweeps"])
def test_no_more_are_priced_than_the_budget_allows(name: str, additive: str) -> None:
    changes = {"search": registry.option("algo", name), "additive": additive, "evals": 20 if name == "mcts" else 20_000}
    problem = solved(algorithm("remeasured", **changes), problem_of(three_products(), evals=1))
    assert problem.evals == 1 and problem.best_cost < problem.initial_cost
    assert_equal_programs(problem.initial, problem.solution().decided.best)
