"""Searches among programs: known optima by brute force, budgets, equal programs."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from graphopt.core.errors import ConfigError
from graphopt.core.graph import Graph
from graphopt.core.plan import Plans
from graphopt.core.utils import registry
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.problems.problem import OutOfBudget
from graphopt.rewrite.io.as_graph import graph_of, program_of
from graphopt.rewrite.ir import reference
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Program, reachable
from graphopt.rewrite.ir.vocabulary import Operation, TensorType
from graphopt.rewrite.models import build_model
from graphopt.rewrite.program_cost import Additive, Flops
from graphopt.rewrite.rewrite_problem import RewriteProblem, Rewriter, Rewriting
from graphopt.rewrite.rules.parsing import load_rules, parse_rules
from graphopt.rewrite.rules.rule import RuleSet
from graphopt.rewrite.rules.steps import free
from graphopt.run.config.construct import construct

# --- Rewriting problems for tests: small programs, rules as text, the roofline of a GPU or a count of ops as the
# cost.

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


# --- Rewriting optimisers against known optima, brute force and each other; answers compute what the originals do.

ALL = ("rewrite_greedy", "rewrite_random", "taso", "tensat", "pet")
SMALL: dict[str, dict[str, Any]] = {
    "inception_v3": {"size": 75, "divisor": 16},
    "squeezenet": {"size": 64, "channels": 8, "classes": 10},
    "resnext50": {"size": 32, "channels": 8, "groups": 4},
    "bert": {"blocks": 2, "seq": 8, "width": 16, "heads": 2},
    "nasrnn": {"steps": 1, "width": 8},
}
CHAIN = parse_rules("associate: (matmul none (matmul none ?x ?y) ?z) <=> (matmul none ?x (matmul none ?y ?z))")
ALGEBRA = parse_rules("""
    commute: (add ?x ?y) => (add ?y ?x)
    associate: (add (add ?x ?y) ?z) <=> (add ?x (add ?y ?z))
    factor: (add (mul ?x ?y) (mul ?x ?z)) <=> (mul ?x (add ?y ?z))
    swap: (mul ?x ?y) => (mul ?y ?x)
""")


def two_products() -> Program:
    b = ProgramBuilder()
    x = b.input((64, 64))
    return b.build(b.linear(x, 32), b.linear(x, 96))


def fire() -> Program:
    """SqueezeNet's expansion: a 1x1 and a 3x3 convolution side by side."""
    b = ProgramBuilder()
    x = b.input((1, 8, 14, 14))
    return b.build(b.concat(1, *(b.unary("relu", b.conv(x, 16, kernel)) for kernel in (1, 3))))


def chain(sizes: tuple[int, ...]) -> Program:
    b = ProgramBuilder()
    product, *others = [b.input(pair) for pair in pairwise(sizes)]
    for other in others:
        product = b.matmul(product, other)
    return b.build(product)


def sums(seed: int) -> Program:
    """A random expression of sums and products of few matrices of different sizes that broadcast."""
    rng, b = np.random.default_rng(seed), ProgramBuilder()
    pool = [b.input(shape) for shape in ((64, 64), (64, 1), (1, 64))]
    for _ in range(5):
        one, other = rng.choice(len(pool), 2, replace=False)
        pool.append(b.op(str(rng.choice(["add", "mul"])), inputs=(pool[one], pool[other])))
    return b.build(pool[-1])


def kinds(program: Program) -> list[str]:
    """Operators that run, of all terms that are not views."""
    views = ("input", "item", "split", "reshape")
    return [program.terms.operation[t].name for t in program.live()
            if not program.terms.static[t] and program.terms.operation[t].name not in views]  # fmt: skip


@pytest.mark.parametrize("name", ["rewrite_greedy", "taso", "tensat", "pet"])
def test_products_with_one_input_become_one(name: str) -> None:
    problem = solved(algorithm(name), problem_of(two_products(), load_rules("handwritten"), growth=3.0))
    assert kinds(problem.solution().decided.best) == ["matmul"]
    assert problem.best_rules == ("merge_matmuls",)
    assert_equal_programs(problem.initial, problem.solution().decided.best)


@pytest.mark.parametrize("name", ["taso", "tensat", "pet"])
def test_a_fire_module_becomes_one_convolution(name: str) -> None:
    problem = solved(algorithm(name), problem_of(fire(), load_rules("handwritten"), growth=3.0))
    assert kinds(problem.solution().decided.best) == ["conv"]
    assert_equal_programs(problem.initial, problem.solution().decided.best)


def test_greedy_extraction_pays_a_shared_product_twice_and_merges_nothing() -> None:
    problem = solved(
        algorithm("tensat", extraction={"by": "greedy_tree", "seconds": 10}, restarts=0),
        problem_of(two_products(), load_rules("handwritten")),
    )
    assert kinds(problem.solution().decided.best) == ["matmul", "matmul"]
    assert problem.best_cost == problem.initial_cost


@pytest.mark.parametrize("name", ["taso", "tensat"])
@pytest.mark.parametrize("sizes", [(64, 8, 64, 8, 64, 8), (512, 256, 16, 512, 32, 1), (1, 512, 1, 512, 1, 512, 1)])
def test_order_of_a_chain_of_products(name: str, sizes: tuple[int, ...]) -> None:
    program = chain(sizes)
    changes: dict[str, Any] = {"alpha": 1e9} if name == "taso" else {}
    problem = solved(algorithm(name, **changes), problem_of(program, CHAIN))
    best = brute_force(problem)
    assert problem.best_cost == best < problem.initial_cost
    assert_equal_programs(program, problem.solution().decided.best)


@pytest.mark.parametrize("seed", range(12))
def test_optimum_of_everything_that_rules_reach(seed: int) -> None:
    """TASO with a large alpha looks at all of it; Tensat has no limit of ops, so it may find more."""
    taso, tensat = (problem_of(sums(seed), ALGEBRA, growth=1.5) for _ in range(2))
    best = brute_force(taso)
    solved(algorithm("taso", alpha=1e9, pops=10**6), taso)
    solved(algorithm("tensat"), tensat)
    assert taso.best_cost == best
    assert tensat.best_cost <= best
    for problem in (taso, tensat):
        assert_equal_programs(problem.initial, problem.solution().decided.best)


@pytest.mark.parametrize("model", SMALL)
def test_answers_compute_what_the_originals_do(model: str) -> None:
    program, rules = build_model(model, SMALL[model]), load_rules("handwritten")
    changes: dict[str, dict[str, Any]] = {
        "taso": {"pops": 40}, "pet": {"pops": 10}, "rewrite_random": {"steps": 10, "walks": 2},
    }  # fmt: skip
    cost = {}
    for name in ALL:
        problem = solved(algorithm(name, **changes.get(name, {})), problem_of(program, rules))
        cost[name] = problem.best_cost
        assert problem.best_cost <= problem.initial_cost
        live = problem.solution().decided.best.live()
        assert problem.best_cost == sum(map(problem.term_price, live)), name  # type: ignore[arg-type]
        assert_equal_programs(program, problem.solution().decided.best)
    assert cost["tensat"] <= min(cost["taso"], cost["rewrite_greedy"], cost["rewrite_random"])


@pytest.mark.parametrize("model", SMALL)
def test_generated_rules_beside_the_handwritten_ones_find_no_less(model: str) -> None:
    program = build_model(model, SMALL[model])
    few, all_ = (
        solved(algorithm("tensat"), problem_of(program, load_rules(*names)))
        for names in (("handwritten",), ("handwritten", "generated"))
    )
    assert all_.best_cost <= few.best_cost
    assert_equal_programs(program, all_.solution().decided.best)


def test_costs_that_do_not_sum_over_ops() -> None:
    """Programs are made and priced whole; Tensat, which cannot, says what can."""
    problem = solved(
        algorithm("taso", pops=5), problem_of(fire(), load_rules("handwritten"), growth=3.0, cost=CountOps())
    )
    assert problem.best_cost == problem.solution().decided.best.num_ops() == 1
    with pytest.raises(ConfigError, match="algo=tensat needs a cost model that sums over ops: choose cost=flops or"):
        algorithm("tensat").solve(problem_of(fire(), load_rules("handwritten"), cost=CountOps()))


def test_alpha_of_one_stops_where_nothing_is_better_at_once() -> None:
    """(x + y) z + (x + y) w: the product can be factored only after sums were multiplied out, which costs more."""
    rules = parse_rules("""
        out: (mul ?x (add ?y ?z)) => (add (mul ?x ?y) (mul ?x ?z))
        in: (add (mul ?x ?y) (mul ?z ?y)) => (mul (add ?x ?z) ?y)
    """)
    b = ProgramBuilder()
    x, y, z = (b.input((256, 256)) for _ in range(3))
    program = b.build(b.add(b.mul(x, b.add(y, z)), b.mul(x, y)))
    strict, loose = (
        solved(algorithm("taso", alpha=alpha), problem_of(program, rules, growth=4.0)) for alpha in (1.0, 2.0)
    )
    assert strict.evals <= loose.evals
    assert loose.best_cost <= strict.best_cost == strict.initial_cost


def test_pet_finds_what_pays() -> None:
    """Where every image of a batch costs a launch of its own, batches are merged, and rows at seams corrected."""
    b = ProgramBuilder()
    program = b.build(b.conv(b.input((6, 3, 16, 8)), 4, 3))
    problem = solved(
        algorithm("pet", pops=20), problem_of(program, load_rules("handwritten"), growth=20.0, cost=PerImage())
    )
    assert problem.best_cost < problem.initial_cost
    assert any(rule.startswith("pet_batch_into") for rule in problem.best_rules)
    assert_equal_programs(program, problem.solution().decided.best)
