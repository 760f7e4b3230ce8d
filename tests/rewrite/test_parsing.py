"""The text form of rules."""

import pytest

from graphopt.rewrite.rules.expressions import Literal, Parameter, Variable
from graphopt.rewrite.rules.loading import load_rules
from graphopt.rewrite.rules.parsing import parse_rules
from graphopt.rewrite.rules.patterns import Node
from graphopt.rewrite.rules.rule import RuleError


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
