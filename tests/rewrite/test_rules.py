"""Rules: reading, matching, steps, and proofs on exact integers."""

import random
from collections import Counter
from itertools import permutations
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from random_programs import leaf, op, random_program

from graphopt.rewrite.generation.instances import instances
from graphopt.rewrite.ir.digests import Digests
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Outputs, Program, Terms, reachable, substitute
from graphopt.rewrite.rules.matching import Match, Matcher
from graphopt.rewrite.rules.parsing import load_rules, parse_rules
from graphopt.rewrite.rules.rule import Literal, Node, Parameter, Pattern, Rule, RuleError, RuleSet, Variable
from graphopt.rewrite.rules.steps import Neighbours
from graphopt.rewrite.verify import Rejected, main, verify

# --- The text form of rules.


def test_a_line_is_read_as_it_is_meant() -> None:
    (rule,) = parse_rules("a: (relu (conv $s [0,1,0,1] none ?x ?w)) => ?x where dim(?x, 1) > 2  # why not")
    conv = Node("conv", (Parameter("s"), Literal((0, 1, 0, 1)), Literal("none")), (Variable("x"), Variable("w")))
    assert rule.sources == (Node("relu", (), (conv,)),)
    assert rule.targets == (Variable("x"),)
    assert str(rule.conditions[0]) == "dim(?x, 1) > 2"


def test_two_ways_are_two_rules() -> None:
    there, back = parse_rules("a: (add ?x ?y) <=> (add ?y ?x)")
    assert (there.name, back.name) == ("a", "a_back")
    assert there.sources == back.targets and there.targets == back.sources


def test_packaged_rules_are_read_again_from_what_they_print() -> None:
    rules = load_rules()
    assert len(rules) > 10
    assert parse_rules("\n".join(map(str, rules))) == rules


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("a: (add ?x ?y) => (add ?y ?z)", r"\?z does not occur in a source"),
        ("a: (add ?x ?y), (relu ?x) => ?x", "2 sources and 1 targets"),
        ("a: (and ?x ?y) => ?x", "no operator 'and'; there are"),
        ("a: (add ?x) => ?x", "add takes 2 to 2 inputs, not 1"),
        ("a: ?x => (relu ?x)", "a mere variable"),
        ("a: (add ?x ?y) -> ?x", "line 1: cannot read '->'"),
        ("a: (add ?x ?y) (add ?y ?x)", "'=>' or '<=>' expected, not '\\('"),
        ("a: (add ?x ?y) => ?x where good(?x)", "no function 'good'; there are shape"),
        ("a: (add ?x ?y) => ?x where rank(fx) = 2", r"rank takes a \?variable, not fx"),
        ("a: (add ?x ?y) => ?x where dim(?x) = 2", "dim takes 2 arguments, not 1"),
        ("a: (add ?x ?y) => ?x where dim(?x, ?y) = 2", r"dim takes a whole number, not \?y"),
        ("a: (add ?x ?y) => ?x where dim(?x, [1]) = 2", r"dim takes a whole number, not \[1\]"),
        ("a: (add ?x ?y) => ?x where length(rank(?x)) = 2", r"length takes a list of whole numbers, not rank"),
        ("a: (add ?x ?y) => ?x where length([1,a]) = 2", r"length takes a list of whole numbers, not \[1,a\]"),
        ("a: (relu ?x) => (item 0 (split {axis_of(fx, -1)} [1] ?x))", r"axis_of takes a \?variable, not fx"),
        ("a: (add ?x ?y) => ?x where 3", "3 is no condition"),
        ("a: (relu (fill 0 [1])) => (fill 0 [1])", "fill cannot be matched"),
        ("a: (relu ?x) => ?x\n\na: (tanh ?x) => ?x", "two rules are named a"),
        ("# first\na: (relu ?x", "line 2: '\\(' expected, not 'the end'"),
    ],
)
def test_what_means_nothing_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(RuleError, match=complaint):
        parse_rules(text)


def test_a_file_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(RuleError, match=r"no rule file 'other'; there are .*handwritten"):
        load_rules("other")


# --- Matching: against a plain recursive matcher, and case by case for several outputs.

RULES = """
    fuse: (relu (add ?x ?y)) => (add (relu ?x) (relu ?y))
    same: (add ?x (mul ?x ?y)) => (mul ?x ?y)
    turn: (transpose $p (transpose $p ?x)) => ?x
    flat: (add (relu ?x) (add ?x (relu ?y))) => (add ?x ?y)
    pair: (relu ?x), (mul ?x ?y) => (mul ?x ?y), (relu ?x)
    apart: (relu ?x), (relu ?y) => (relu ?y), (relu ?x)
"""


def recursive(terms: Terms, pattern: Pattern, term: int, binding: dict[str, Any]) -> bool:
    """The meaning of a pattern, without any compilation."""
    if isinstance(pattern, Variable):
        return binding.setdefault(str(pattern), term) == term
    operation, inputs = terms.operation[term], terms.inputs[term]
    if (operation.name, len(inputs)) != (pattern.operator, len(pattern.inputs)):
        return False
    for param, value in zip(pattern.params, operation.params):
        if isinstance(param, Literal) and param.value != value:
            return False
        if isinstance(param, Parameter) and binding.setdefault(str(param), value) != value:
            return False
    return all(recursive(terms, p, i, binding) for p, i in zip(pattern.inputs, inputs))


def random_terms(rng: np.random.Generator, size: int) -> Terms:
    terms = Terms()
    leaf(terms, "a", 2, 2), leaf(terms, "b", 2, 2)
    while len(terms) < size:
        x, y = (int(i) for i in rng.integers(len(terms), size=2))
        match rng.integers(4):
            case 0:
                op(terms, "add", of=(x, y))
            case 1:
                op(terms, "mul", of=(x, y))
            case 2:
                op(terms, "relu", of=(x,))
            case 3:
                op(terms, "transpose", (1, 0) if rng.random() < 0.7 else (0, 1), of=(x,))
    return terms


@pytest.mark.parametrize("seed", range(20))
def test_matches_are_those_of_a_plain_matcher(seed: int) -> None:
    terms = random_terms(np.random.default_rng(seed), 40)
    rules = [rule for rule in parse_rules(RULES) if rule.name != "apart"]
    expected = set()
    for rule in rules:
        for roots in permutations(range(len(terms)), len(rule.sources)):
            binding: dict[str, Any] = {}
            if all(recursive(terms, s, r, binding) for s, r in zip(rule.sources, roots)):
                needs = {b for name, b in binding.items() if name[0] == "?"}
                if len(roots) == 1 or not set(roots) & set(reachable(terms, needs)):
                    expected.add((rule.name, roots, tuple(sorted(binding.items()))))
    found = [(m.rule.name, m.roots, tuple(sorted(m.binding.items()))) for m in Matcher(rules, terms).matches(range(40))]
    assert len(set(found)) == len(found)
    assert set(found) == expected


def test_pairs_come_once_where_sources_may_change_places() -> None:
    terms = Terms()
    roots = [op(terms, "relu", of=(leaf(terms, name, 2, 2),)) for name in "abc"]
    matches = Matcher(parse_rules(RULES), terms).matches(range(len(terms)))
    pairs = [m.roots for m in matches if m.rule.name == "apart"]
    assert pairs == [(roots[0], roots[1]), (roots[0], roots[2]), (roots[1], roots[2])]


def test_terms_that_are_dead_or_static_do_not_match() -> None:
    terms = Terms()
    x, w = leaf(terms, "x", 2, 2), leaf(terms, "w", 2, 2, kind="weight")
    dead = op(terms, "relu", of=(op(terms, "add", of=(x, x)),))
    output = op(terms, "mul", of=(x, op(terms, "relu", of=(op(terms, "add", of=(w, w)),))))
    matcher = Matcher(parse_rules(RULES), terms)
    assert [m.rule.name for m in matcher.matches(reachable(terms, [dead]))] == ["fuse"]
    assert matcher.matches(reachable(terms, [output])) == []


def test_only_new_terms_are_visited_after_a_rewrite() -> None:
    terms = Terms()
    x, y = leaf(terms, "x", 2, 2), leaf(terms, "y", 2, 2)
    inner = op(terms, "relu", of=(op(terms, "add", of=(x, y)),))
    far = op(terms, "relu", of=(op(terms, "add", of=(y, y)),))
    program = Program(terms, (op(terms, "mul", of=(inner, far)),), ("out",), (x, y))
    matcher = Matcher(parse_rules(RULES), terms)
    before = matcher.matches(program.live())
    (at_inner,) = (m for m in before if m.roots == (inner,))
    made = matcher.apply(at_inner)
    assert made is not None and made == matcher.apply(at_inner)
    after = program.with_outputs(substitute(terms, program.outputs, program.live(), {inner: made[0]}))
    assert [m for m in matcher.matches(after.live()) if m.roots == (far,)] == [m for m in before if m.roots == (far,)]


def test_conditions_join_and_types_decide() -> None:
    (rule,) = parse_rules(
        "merge: (relu ?x), (relu ?y) => (item 0 (split 1 {sizes(1, ?x, ?y)} (relu (concat 1 ?x ?y)))),"
        " (item 1 (split 1 {sizes(1, ?x, ?y)} (relu (concat 1 ?x ?y)))) where without(1, ?x) = without(1, ?y)"
    )
    terms = Terms()
    shapes = ((2, 3), (2, 4), (5, 3))
    relus = [op(terms, "relu", of=(leaf(terms, f"i{k}", *shape),)) for k, shape in enumerate(shapes)]
    matcher = Matcher([rule], terms)
    (match,) = matcher.matches(range(len(terms)))
    assert match.roots == (relus[0], relus[1])
    made = matcher.apply(match)
    assert made is not None and [terms.shape(m) for m in made] == [(2, 3), (2, 4)]


def test_a_target_of_another_type_is_no_rewrite() -> None:
    (rule,) = parse_rules("wrong: (add ?x ?y) => ?x")
    terms = Terms()
    narrow = op(terms, "add", of=(leaf(terms, "x", 1, 3), leaf(terms, "y", 2, 3)))
    matcher = Matcher([rule], terms)
    (match,) = matcher.matches([narrow])
    assert matcher.apply(match) is None


# --- Rewrites priced without being made, against the programs they lead to.

# Beside real rules: what is put in contains the root, coincides with others, is an input, swaps two terms.
ODD = parse_rules("""
    twice: (relu ?x) => (relu (relu ?x))
    once: (relu (relu ?x)) => (relu ?x)
    argument: (relu ?x) => ?x
    first: (add ?x ?y) => ?x
    both: (relu ?x), (add ?y ?z) => (add (relu ?x) (relu ?x)), (add ?z ?y)
    same: (relu ?x), (relu ?y) => (relu ?x), (relu ?x) where same_shape(?x, ?y)
    inside: (mul ?x ?y), (add ?x ?y) => (add ?x ?y), (relu (add ?x ?y))
    commute: (add ?x ?y) => (add ?y ?x)
    grow: (add ?x ?y) => (add (add ?x ?y) (relu ?y))
""")


def price(program: Program, term: int) -> float:
    """As costs are: of what a term is and of the types that it reads. Random: other terms, other sums."""
    terms = program.terms
    kind = (str(terms.operation[term]), [terms.types[i] for i in terms.inputs[term]])
    return 0.0 if terms.static[term] else float(crc32(repr(kind).encode()))


def made_by(matcher: Matcher, program: Program, outputs: Outputs) -> dict[Outputs, Match]:
    """Every other program that one rule at one place makes, by its outputs."""
    live = reachable(program.terms, outputs)
    found: dict[Outputs, Match] = {}
    for match in matcher.matches(live):
        made = matcher.apply(match)
        if made is not None:
            found.setdefault(substitute(program.terms, outputs, live, dict(zip(match.roots, made))), match)
    found.pop(outputs, None)
    return found


def check(program: Program, rules: RuleSet, neighbours: Neighbours, outputs: Outputs) -> list[Outputs]:
    """Compares all steps of a program with the programs themselves, which it returns."""
    made = made_by(Matcher(rules, program.terms), program, outputs)
    steps = list(neighbours.around(outputs, lambda t: price(program, t)).steps())
    assert [(m.rule, m.roots) for m in made.values()] == [(s.match.rule, s.match.roots) for s in steps]
    for after, step in zip(made, steps):
        rule = step.match.rule.name
        assert step.digest == neighbours.digest(after), rule
        assert step.cost == sum(price(program, t) for t in reachable(program.terms, after)), rule
        assert step.ops == program.with_outputs(after).num_ops(), rule
        assert neighbours.apply(outputs, step.match) == after
    return list(made)


@pytest.mark.parametrize("seed", range(40))
def test_steps_are_what_their_programs_are(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, 14)
    rules = (*ODD, *(load_rules() if seed % 2 else ()))
    neighbours = Neighbours(rules, program.terms)
    outputs = program.outputs
    for _ in range(6):
        next_ones = [o for o in check(program, rules, neighbours, outputs) if len(reachable(program.terms, o)) < 60]
        if not next_ones:
            return
        outputs = next_ones[int(rng.integers(len(next_ones)))]


def test_digests_tell_apart_what_only_order_distinguishes() -> None:
    b = ProgramBuilder()
    x, y, z, w = (b.input((2, 2)) for _ in range(4))
    programs = [b.add(b.add(x, y), b.add(z, w)), b.add(b.add(x, z), b.add(y, w)), b.add(b.add(y, x), b.add(z, w)),
                b.unary("relu", b.unary("tanh", x)), b.unary("tanh", b.unary("relu", x)), b.add(x, y),
                b.add(y, x)]  # fmt: skip
    digests = Digests(b.terms)
    assert len({digests.program((p,)) for p in programs}) == len(programs)
    assert digests.program((x, y)) != digests.program((y, x))


# --- Verification: what is wrong is rejected, what is packaged is right.


def rule_of(name: str, text: str) -> Rule:
    (rule,) = parse_rules(f"{name}: {text}")
    return rule


def test_targets_that_cannot_be_computed_are_rejected() -> None:
    """The activation of a conv is a word, of which `larger` makes no maximum."""
    with pytest.raises(Rejected, match="targets cannot be computed"):
        verify(rule_of("a", "(conv $s $p $f ?x ?w) => (conv $s {larger($f, [1,1,1,1])} $f ?x ?w)"))


def test_what_fits_no_shape_is_rejected() -> None:
    never = "(add ?x ?y) => (add ?y ?x) where rank(?x) = 2, rank(?y) = 1, same_shape(?x, ?y)"
    with pytest.raises(Rejected, match="0 shapes found that fit it"):
        verify(rule_of("never", never))


@pytest.mark.parametrize("rule", load_rules("handwritten"), ids=lambda rule: rule.name)
def test_packaged_rules_are_true(rule: Rule) -> None:
    assert verify(rule, cases=20) >= 4


def test_cases_cover_ranks_broadcasting_strides_and_groups() -> None:
    rng = np.random.default_rng(0)
    cases = list(instances(rule_of("a", "(add ?x ?y) => (add ?y ?x)"), rng, 300))
    assert {len(case.shapes["?x"]) for case in cases} == {1, 2, 3, 4}
    assert any(len(case.shapes["?x"]) != len(case.shapes["?y"]) for case in cases)
    assert any(1 in case.shapes["?x"] and case.shapes["?x"] != case.shapes["?y"] for case in cases)
    cases = list(instances(rule_of("b", "(relu (conv $s $p none ?x ?w)) => (conv $s $p relu ?x ?w)"), rng, 300))
    assert {case.params["$s"] for case in cases} == {(1, 1), (2, 2), (1, 2)}
    assert {case.shapes["?x"][1] // case.shapes["?w"][1] for case in cases} == {1, 2, 3, 4}


def test_command_names_what_it_rejects(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "rules.txt"
    file.write_text("good: (add ?x ?y) => (add ?y ?x)\nbad: (relu ?x) => (tanh ?x)\n")
    assert main([str(file)]) == 1
    printed = capsys.readouterr().out
    assert "bad: output 0 differs" in printed and "1 of 2 rules verified" in printed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: (add (split 0 $n ?x) ?y) => (add ?y (split 0 $n ?x))", "add reads all results of split: pick one by item"),
        ("a: (split 0 $n (sigmoid ?x)) => (split 0 $n (sigmoid ?x))", "split makes several tensors: pick one by item"),
        ("a: (sigmoid (item 1 (relu ?x))) => (relu (item 1 (sigmoid ?x)))", "item picks a tensor of opaque or split"),
        ("a: (softmax $a (item $i ?x)) => (softmax $a (item $i ?x))", "item picks a tensor of opaque or split"),
    ],
)
def test_several_tensors_are_used_by_item_alone(text: str, said: str) -> None:
    with pytest.raises(RuleError, match=said):
        parse_rules(text)


def test_whatever_a_rule_says_is_verified_or_refused() -> None:
    """Random patterns, of which most mean nothing: no other exception."""
    rng = random.Random(0)
    ones = ("(sigmoid %s)", "(item 1 %s)", "(item $i %s)", "(item 0 (split 0 $n %s))", "(split $a $n %s)",
            "(pad $b $c %s)", "(reshape $r %s)", "(transpose $p %s)", "(concat $a %s)", "(enlarge $k %s)",
            "(pool_max $k $s $q %s)")  # fmt: skip
    twos = ("(add %s %s)", "(matmul none %s %s)", "(gather $a %s %s)", "(concat 1 %s %s)")

    def pattern(depth: int) -> str:
        if not depth or rng.random() < 0.2:
            return rng.choice(("?x", "?y"))
        if rng.random() < 0.7:
            return rng.choice(ones) % pattern(depth - 1)
        return rng.choice(twos) % (pattern(depth - 1), pattern(depth - 1))

    ends = Counter[str]()
    for _ in range(400):
        source = pattern(3)
        try:
            for rule in parse_rules(f"a: {source} => {rng.choice((source, pattern(2)))}"):
                verify(rule, cases=4)
            ends["verified"] += 1
        except RuleError as error:
            ends[type(error).__name__] += 1
    assert min(ends.values()) >= 10 and len(ends) == 3
