"""Exploration of classes of equal terms: congruence, both engines alike, cycles cut, limits kept."""

from graphlib import CycleError, TopologicalSorter

import pytest

from graphopt.rewrite.egraphs.cycles import FILTERS
from graphopt.rewrite.egraphs.eclasses import TermClasses
from graphopt.rewrite.egraphs.exploring import ExplorationLimits, Explored, Explorer
from graphopt.rewrite.egraphs.finding import LoopFinder
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.models import build_model
from graphopt.rewrite.rules.loading import load_rules
from graphopt.rewrite.rules.parsing import parse_rules
from graphopt.rewrite.rules.rule import RuleSet

SUMS = parse_rules("commute: (add ?x ?y) => (add ?y ?x)\nassociate: (add (add ?x ?y) ?z) <=> (add ?x (add ?y ?z))")
MODELS = {
    "squeezenet": {"size": 64, "channels": 8, "classes": 10},
    "bert": {"blocks": 1, "seq": 8, "width": 16, "heads": 2},
    "resnext50": {"size": 32, "channels": 8, "groups": 4},
}


def limits(nodes: int = 10**6, iterations: int = 30, k_multi: int = 1, matches: float = 1e9) -> ExplorationLimits:
    return ExplorationLimits(nodes, iterations, 1e9, k_multi, matches, 5)


def explored(program: Program, rules: RuleSet, by: str = "own", cycles: str = "allowed",
             within: ExplorationLimits | None = None) -> tuple[TermClasses, Explored]:  # fmt: skip
    classes = TermClasses(program.terms)
    classes.add_program(program.outputs)
    if by == "own":
        finder = LoopFinder(rules, classes, static=False)
    else:
        pytest.importorskip("egglog")
        from graphopt.rewrite.egraphs.egglog_finding import EgglogFinder

        finder = EgglogFinder(rules, classes)
    return classes, Explorer(rules, classes, finder, FILTERS[cycles]()).run(within or limits())


def sum_of(count: int) -> Program:
    b = ProgramBuilder()
    total, *others = [b.input((2, 2)) for _ in range(count)]
    for other in others:
        total = b.add(total, other)
    return b.build(total)


def acyclic(classes: TermClasses) -> bool:
    below = {
        at: {child for node in members for child in classes.children[node]} for at, members in classes.members.items()
    }
    try:
        list(TopologicalSorter(below).static_order())
    except CycleError:
        return False
    return True


@pytest.mark.parametrize("by", ["own", "egglog"])
@pytest.mark.parametrize("count", [3, 4, 5])
def test_sums_in_every_order(by: str, count: int) -> None:
    """A class per subset of two or more summands, a node per way to split it in two: 2^n - 2 for n summands."""
    classes, end = explored(sum_of(count), SUMS, by)
    inputs = count
    assert len(classes.members) - inputs == 2**count - 1 - count
    assert len(classes) - inputs == 3**count - 2 ** (count + 1) + 1
    assert end.why == "saturated"


def test_equal_inputs_make_equal_terms() -> None:
    b = ProgramBuilder()
    x, y = b.input((2, 2)), b.input((2, 2))
    left, right = (b.unary("tanh", b.unary("relu", s)) for s in (b.add(x, y), b.add(y, x)))
    classes, _ = explored(b.build(left, right), SUMS)
    assert classes.find(left) == classes.find(right)
    assert len(classes.members[classes.find(left)]) == 1


@pytest.mark.parametrize("model", MODELS)
def test_engines_find_the_same(model: str) -> None:
    """The same classes of the same sizes, and terms of the program are told apart alike."""
    found = []
    for by in ("own", "egglog"):
        program = build_model(model, MODELS[model])
        classes, end = explored(program, load_rules("handwritten"), by)
        sizes = sorted((str(classes.types[at]), len(members)) for at, members in classes.members.items())
        found.append((sizes, [classes.find(t) == t for t in program.outputs], end.why))
    assert found[0] == found[1]


@pytest.mark.parametrize("cycles", ["efficient", "vanilla"])
@pytest.mark.parametrize("model", MODELS)
def test_filters_leave_no_cycle_and_every_class_a_node(cycles: str, model: str) -> None:
    program = build_model(model, MODELS[model])
    classes, _ = explored(program, load_rules("handwritten"), cycles=cycles)
    assert acyclic(classes)
    assert all(classes.members.values())


def test_a_cycle_that_is_not_cut_stays() -> None:
    b = ProgramBuilder()
    program = b.build(b.unary("relu", b.input((2, 2))))
    rules = parse_rules("idle: (relu ?x) => (relu (relu ?x))")
    assert not acyclic(explored(program, rules)[0])
    assert acyclic(explored(program, rules, cycles="efficient")[0])


def test_a_merge_that_would_need_its_own_result_is_not_made() -> None:
    """x W and (x W) W: the second reads the first, so one product cannot make both."""
    b = ProgramBuilder()
    x, w, v = b.input((4, 4)), b.weight(4, 4), b.weight(4, 4)
    first = b.matmul(x, w)
    rules = parse_rules(
        "both: (matmul none ?x ?a), (matmul none ?y ?b) => (matmul none ?x (mul ?a ?b)), (matmul none ?y (mul ?a ?b))"
    )
    for cycles in FILTERS:
        assert len(explored(b.build(b.matmul(first, v)), rules, cycles=cycles)[0]) == 5
        assert len(explored(b.build(first, b.matmul(x, v)), rules, cycles=cycles)[0]) > 5


def test_limits_hold() -> None:
    program, rules = sum_of(8), load_rules("handwritten")
    classes, end = explored(program, rules, within=limits(nodes=100))
    assert end.why == "nodes" and len(classes) <= 100 + 3  # the last target may bring several
    assert explored(program, rules, within=limits(iterations=2))[1] == Explored("iterations", 2)
    assert explored(program, rules, within=limits(matches=1.0))[1].why == "resting"
    b = ProgramBuilder()
    x = b.input((4, 4))
    two = b.build(b.linear(x, 4), b.linear(x, 4))
    assert len(explored(two, rules, within=limits(k_multi=0))[0]) == 5 < len(explored(two, rules)[0])
