"""Classes of equal terms: saturation, proofs, exploration."""

import random
from graphlib import CycleError, TopologicalSorter
from itertools import permutations

import pytest
from random_programs import leaf, op

from graphopt.rewrite.egraphs.eclasses import TermClasses, forbid_cycles
from graphopt.rewrite.egraphs.saturation import ExplorationLimits, Explored, Explorer, Prover, SaturationLimits
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Program, Terms
from graphopt.rewrite.models import build_model
from graphopt.rewrite.rules.parsing import load_rules, parse_rules
from graphopt.rewrite.rules.rule import RuleSet

# --- Proofs by equality saturation with a known answer, and limits.

SUMS = parse_rules("""
    commute: (add ?x ?y) => (add ?y ?x)
    associate: (add (add ?x ?y) ?z) => (add ?x (add ?y ?z))
""")


def proof(rules: str, terms: Terms, left: int, right: int, limits: SaturationLimits) -> int | None:
    return Prover(parse_rules(rules)).steps(terms, [(left, right)], limits)


@pytest.mark.parametrize("order", permutations(range(4)))
def test_sums_of_four_are_equal_in_any_order(order: tuple[int, ...]) -> None:
    terms = Terms()
    parts = [leaf(terms, name, 2) for name in "abcd"]
    left = op(terms, "add", of=(op(terms, "add", of=parts[:2]), op(terms, "add", of=parts[2:])))
    a, b, c, d = (parts[i] for i in order)
    right = op(terms, "add", of=(a, op(terms, "add", of=(b, op(terms, "add", of=(c, d))))))
    rounds = Prover(SUMS).steps(terms, [(left, right)], SaturationLimits(6, 2000))
    assert rounds is not None and rounds <= 5


def test_what_does_not_follow_is_not_proved() -> None:
    terms = Terms()
    x, y = leaf(terms, "x", 2), leaf(terms, "y", 2)
    left, right = op(terms, "add", of=(x, y)), op(terms, "add", of=(x, x))
    rules = "\n".join(map(str, SUMS))
    assert proof(rules, terms, left, right, SaturationLimits()) is None


def test_computed_parameters_of_sources_are_conditions() -> None:
    terms = Terms()
    x, y = leaf(terms, "x", 2, 3), leaf(terms, "y", 2, 1)
    both = op(terms, "concat", 1, of=(x, y))
    rule = "first: (item 0 (split $a {sizes($a, ?x, ?y)} (concat $a ?x ?y))) => ?x"
    for sizes, rounds in (((3, 1), 1), ((1, 3), None)):
        part = op(terms, "item", 0, of=(op(terms, "split", 1, sizes, of=(both,)),))
        assert proof(rule, terms, part, x, SaturationLimits()) == rounds


def test_a_pair_is_proved_only_where_its_parts_are() -> None:
    """Two pairs at once; of different types, which no rule makes equal, whatever it says."""
    terms = Terms()
    x, y, z = leaf(terms, "x", 2), leaf(terms, "y", 2), leaf(terms, "z", 1, 2)
    sums = [op(terms, "add", of=of) for of in ((x, y), (y, x), (x, z), (z, x))]
    prover = Prover(SUMS)
    assert prover.steps(terms, list(zip(sums[::2], sums[1::2])), SaturationLimits()) == 1
    assert prover.steps(terms, [(sums[0], sums[1]), (sums[0], sums[2])], SaturationLimits()) is None
    wrong = Prover(parse_rules("wrong: (add ?x ?y) => ?x"))
    assert wrong.steps(terms, [(sums[0], x)], SaturationLimits()) == 1
    assert wrong.steps(terms, [(sums[2], x)], SaturationLimits()) is None


def test_what_depends_on_weights_alone_is_proved_too() -> None:
    terms = Terms()
    v, w = (leaf(terms, name, 2, kind="weight") for name in "vw")
    assert (
        Prover(SUMS).steps(terms, [(op(terms, "add", of=(v, w)), op(terms, "add", of=(w, v)))], SaturationLimits()) == 1
    )


def test_growth_ends_at_the_limits() -> None:
    terms = Terms()
    x, y = leaf(terms, "x", 2), leaf(terms, "y", 2)
    grow = Prover(parse_rules("grow: (relu ?x) => (relu (relu (add ?x ?x)))"))
    assert grow.steps(terms, [(op(terms, "relu", of=(x,)), y)], SaturationLimits(100, 50)) is None
    assert 50 <= len(terms) < 60


# --- Exploration of classes of equal terms: congruence, cycles cut, limits kept.

SUM_LAWS = parse_rules("commute: (add ?x ?y) => (add ?y ?x)\nassociate: (add (add ?x ?y) ?z) <=> (add ?x (add ?y ?z))")
MODELS = {
    "squeezenet": {"size": 64, "channels": 8, "classes": 10},
    "bert": {"blocks": 1, "seq": 8, "width": 16, "heads": 2},
    "resnext50": {"size": 32, "channels": 8, "groups": 4},
}


def limits(nodes: int = 10**6, iterations: int = 30, k_multi: int = 1, matches: float = 1e9) -> ExplorationLimits:
    return ExplorationLimits(nodes, iterations, 1e9, k_multi, matches, 5)


def explored(program: Program, rules: RuleSet, acyclic: bool = False,
             within: ExplorationLimits | None = None) -> tuple[TermClasses, Explored]:  # fmt: skip
    classes = TermClasses(program.terms)
    classes.add_program(program.outputs)
    return classes, Explorer(rules, classes, acyclic=acyclic).run(within or limits())


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


@pytest.mark.parametrize("count", [3, 4, 5])
def test_sums_in_every_order(count: int) -> None:
    """A class per subset of two or more summands, a node per way to split it in two: 2^n - 2 for n summands."""
    classes, end = explored(sum_of(count), SUM_LAWS)
    inputs = count
    assert len(classes.members) - inputs == 2**count - 1 - count
    assert len(classes) - inputs == 3**count - 2 ** (count + 1) + 1
    assert end.why == "saturated"


def test_equal_inputs_make_equal_terms() -> None:
    b = ProgramBuilder()
    x, y = b.input((2, 2)), b.input((2, 2))
    left, right = (b.unary("tanh", b.unary("relu", s)) for s in (b.add(x, y), b.add(y, x)))
    classes, _ = explored(b.build(left, right), SUM_LAWS)
    assert classes.find(left) == classes.find(right)
    assert len(classes.members[classes.find(left)]) == 1


def test_users_of_what_is_merged_while_users_are_rebuilt_stay() -> None:
    """x = relu x, then x = y: relu y becomes x as well, and what reads it must read x."""
    terms = Terms()
    x, y = leaf(terms, "x", 2, 2), leaf(terms, "y", 2, 2)
    first, second = op(terms, "relu", of=[x]), op(terms, "relu", of=[y])
    reader = op(terms, "tanh", of=[second])
    classes = TermClasses(terms)
    classes.add_program([first, reader])
    for a, b in ((x, first), (x, y)):
        classes.merge(a, b)
        classes.rebuild()
    assert classes.find(second) == classes.find(x) and classes.children[reader] == (classes.find(x),)


# Nodes, classes, the sum of the squares of the sizes of classes, rounds, as egglog 13.2 finds them too.
BY_EGGLOG = {"squeezenet": (261, 167, 549, 3), "bert": (52, 39, 114, 2), "resnext50": (465, 263, 1089, 4)}


@pytest.mark.parametrize("model", MODELS)
def test_saturation_finds_what_another_engine_finds(model: str) -> None:
    classes, end = explored(build_model(model, MODELS[model]), load_rules("handwritten"))
    squares = sum(len(members) ** 2 for members in classes.members.values())
    assert (len(classes), len(classes.members), squares, end.rounds) == BY_EGGLOG[model]
    assert end.why == "saturated"


@pytest.mark.parametrize("model", MODELS)
def test_filters_leave_no_cycle_and_every_class_a_node(model: str) -> None:
    program = build_model(model, MODELS[model])
    classes, _ = explored(program, load_rules("handwritten"), acyclic=True)
    assert acyclic(classes)
    assert all(classes.members.values())


@pytest.mark.parametrize(("adds", "merges"), [(4, 2), (8, 2), (12, 6)])
def test_every_class_keeps_a_node_whatever_is_merged(adds: int, merges: int) -> None:
    for seed in range(100):
        draw, terms = random.Random(seed), Terms()
        x, y = leaf(terms, "x", 2, 2), leaf(terms, "y", 2, 2)
        relu, *others = [
            terms.operation[op(terms, name, of=of)] for name, *of in (("relu", x), ("add", x, y), ("mul", x, y))
        ]
        classes = TermClasses(terms)
        classes.add_program([x, y])
        for _ in range(5):
            for _ in range(adds):
                operation = draw.choice([relu, *others])
                classes.add(operation, draw.choices([*classes.members], k=1 if operation is relu else 2))
            for _ in range(merges):
                classes.merge(*draw.choices([*classes.members], k=2))
            classes.rebuild()
            forbid_cycles(classes)
            assert acyclic(classes) and all(classes.members.values())


def test_a_cycle_that_is_not_cut_stays() -> None:
    b = ProgramBuilder()
    program = b.build(b.unary("relu", b.input((2, 2))))
    rules = parse_rules("idle: (relu ?x) => (relu (relu ?x))")
    assert not acyclic(explored(program, rules)[0])
    assert acyclic(explored(program, rules, acyclic=True)[0])


def test_a_merge_that_would_need_its_own_result_is_not_made() -> None:
    """x W and (x W) W: the second reads the first, so one product cannot make both."""
    b = ProgramBuilder()
    x, w, v = b.input((4, 4)), b.weight(4, 4), b.weight(4, 4)
    first = b.matmul(x, w)
    rules = parse_rules(
        "both: (matmul none ?x ?a), (matmul none ?y ?b) => (matmul none ?x (mul ?a ?b)), (matmul none ?y (mul ?a ?b))"
    )
    for acyclic_ in (False, True):
        assert len(explored(b.build(b.matmul(first, v)), rules, acyclic_)[0]) == 5
        assert len(explored(b.build(first, b.matmul(x, v)), rules, acyclic_)[0]) > 5


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
