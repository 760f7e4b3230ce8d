"""TASO's 133 substitutions, in Tensat's text form: proved from generated rules, and mutants of them refused."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from check_data import check_data
from foreign_rules import proof, readings, refute, rules_in, true_reading

from graphopt.core.errors import UserError
from graphopt.rewrite.egraphs.saturation import Prover
from graphopt.rewrite.rules.parsing import load_rules, parse_rules
from graphopt.rewrite.rules.patterns import Literal, Node, Pattern
from graphopt.rewrite.rules.rule import Rule
from graphopt.rewrite.verify import Rejected

HARMLESS = ("operands of add", "operands of mul", "conv none to relu", "matmul none to relu")
PROVER = Prover(load_rules("generated"))
MEANT = {
    "all shapes": 122,
    "convs of one group": 7,
    "convs of one group with kernels of one shape": 4,
}


@cache
def substitutions() -> list[Rule]:
    folder = check_data("rewriting")
    single, several = (folder / f"tensat_converted{name}.txt" for name in ("", "_multi"))
    return [*rules_in(single.read_text()), *rules_in(several.read_text(), outputs=2)]


def test_every_substitution_is_proved() -> None:
    """In the widest reading in which it is true (docs/rewriting.md has how many are read how)."""
    meant, rounds = Counter[str](), Counter[int | None]()
    for rule in substitutions():
        name, reading = true_reading(rule)
        meant[name] += 1
        rounds[proof(reading, PROVER)] += 1
    assert meant == MEANT and rounds.keys() == {1, 2, 3, 4}


def test_two_lines_as_the_files_write_them() -> None:
    (single,) = rules_in("(relu (conv2d 1 1 0 0 ?a ?b))=>(conv2d 1 1 0 2 ?a ?b)\n")
    (several,) = rules_in(
        "(relu ?a)=>(split_0 (split 1 (relu (concat 1 2 ?a ?b))))\n"
        "(relu ?b)=>(split_1 (split 1 (relu (concat 1 2 ?a ?b))))\n",
        outputs=2,
    )
    expected = parse_rules(
        "tensat_0: (relu (conv [1,1] [1,1,1,1] none ?a ?b)) => (conv [1,1] [1,1,1,1] relu ?a ?b)"
        " where rank(?a) = 4, rank(?b) = 4, kernel(?b) = [3,3]"
    ) + parse_rules(
        "tensat_0: (relu ?a), (relu ?b) => (item 0 (split 1 {sizes(1, ?a, ?b)} (relu (concat 1 ?a ?b)))),"
        " (item 1 (split 1 {sizes(1, ?a, ?b)} (relu (concat 1 ?a ?b)))) where rank(?a) = 2, rank(?b) = 2"
    )
    assert (single, several) == expected


def test_readings_narrow_what_the_files_leave_open() -> None:
    (rule,) = parse_rules(
        "a: (concat 1 (conv [1,1] [1,1,1,1] none ?x ?v) (conv [1,1] [1,1,1,1] none ?y ?w))"
        " => (conv [1,1] [1,1,1,1] none (concat 1 ?x ?y) (concat 0 ?v ?w))"
    )
    assert next(name for name, _ in readings(rule)) == "all shapes"
    assert true_reading(rule)[0] == "convs of one group with kernels of one shape"


def refuted(rule: Rule) -> bool:
    """With a counterexample, which the message shows."""
    try:
        true_reading(rule)
    except Rejected as error:
        return error.instance is not None and "for ?" in str(error)
    return False


def convs(stride: int, other: int, padding: int) -> list[Rule]:
    """relu(conv(x, w)) = conv with relu, of another stride or padding."""
    return rules_in(
        f"(relu (conv2d {stride} {stride} 0 0 ?x ?w))=>(conv2d {other} {other} {padding} 2 ?x ?w)\n"
        f"(conv2d {stride} {stride} 0 0 ?x (ewadd ?v ?w))"
        f"=>(ewadd (conv2d {stride} {stride} 0 0 ?x ?v) (conv2d {other} {other} {padding} 0 ?x ?w))\n"
    )


@pytest.mark.parametrize("stride, other, padding", [(1, 2, 0), (2, 1, 0), (1, 1, 1), (2, 2, 1)])
def test_strides_and_paddings_that_matter_only_on_larger_images_are_refuted(
    stride: int, other: int, padding: int
) -> None:
    assert all(map(refuted, convs(stride, other, padding)))
    assert not any(map(refuted, convs(stride, stride, 0)))


@pytest.mark.parametrize("first, second", [(0, 1), (1, 2), (3, 1), (2, 0)])
def test_concats_of_two_axes_are_exchanged(first: int, second: int) -> None:
    outer, inner = f"concat {first} 4", f"concat {second} 4"
    source = f"({outer} ({inner} ?a ?b) ({inner} ?c ?d))"
    right, wrong = rules_in(
        f"{source}=>({inner} ({outer} ?a ?c) ({outer} ?b ?d))\n{source}=>({inner} ({outer} ?a ?b) ({outer} ?c ?d))\n"
    )
    assert proof(true_reading(right)[1], Prover(load_rules("exchanges"))) is not None
    assert refuted(wrong)


@pytest.mark.parametrize("chunk", range(8))
def test_mistakes_are_refuted_with_a_counterexample(chunk: int) -> None:
    """What is not refuted is true: by exact integers in many further cases, and only two mistakes can be none: the
    operands of sums and products may be exchanged, and a relu of a relu is one."""
    every = [mutant for rule in substitutions() for mutant in mutants(rule)]
    picked = np.random.default_rng(chunk).choice(len(every), 6, replace=False)
    for mistake, rule in (every[k] for k in picked):
        try:
            _, reading = true_reading(rule)
        except Rejected as error:
            assert error.instance is not None and "for ?" in str(error), error
        else:
            assert refute(reading, seed=1, cases=150) > 20, (mistake, rule)
            assert mistake in HARMLESS, (mistake, rule)


@pytest.mark.parametrize("rule", ["a: " + "(relu " * 50_000 + "?x => ?x", "a: (concat " + "9" * 5000 + " ?x) => ?x"])
def test_rules_that_no_reader_can_follow_are_a_sentence(rule: str) -> None:
    with pytest.raises(UserError, match="line 1: ") as caught:
        parse_rules(rule)
    assert len(str(caught.value)) < 1500


# --- Rules with one mistake: another stride, padding, activation, axis, part or operator, or two operands exchanged.

ACTIVATIONS = ("none", "relu", "tanh", "sigmoid")
STRIDES, PADS = ((1, 1), (2, 2), (1, 2)), ((0, 0, 0, 0), (1, 1, 1, 1), (1, 1, 0, 0))
PARAMS = {"conv": (STRIDES, PADS, ACTIVATIONS), "matmul": (ACTIVATIONS,), "concat": (range(4),), "split": (range(4),),
          "item": (range(2),)}  # fmt: skip
ALIKE = {"relu": ("tanh",), "tanh": ("sigmoid",), "sigmoid": ("relu",), "add": ("mul",), "mul": ("add",)}


def mutants(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """What was changed in the targets, and the changed rule."""
    for place, target in enumerate(rule.targets):
        for mistake, changed in _changed(target):
            targets = (*rule.targets[:place], changed, *rule.targets[place + 1 :])
            yield mistake, replace(rule, targets=targets)


def _changed(pattern: Pattern) -> Iterator[tuple[str, Pattern]]:
    if not isinstance(pattern, Node):
        return
    for k, options in enumerate(PARAMS.get(pattern.operator, ())):
        param = pattern.params[k]
        for value in options:
            if isinstance(param, Literal) and param.value != value:
                params = (*pattern.params[:k], Literal(value), *pattern.params[k + 1 :])
                yield f"{pattern.operator} {param} to {Literal(value)}", replace(pattern, params=params)
    for operator in ALIKE.get(pattern.operator, ()):
        yield f"{pattern.operator} to {operator}", replace(pattern, operator=operator)
    if len(pattern.inputs) == 2 and pattern.inputs[0] != pattern.inputs[1]:
        yield f"operands of {pattern.operator}", replace(pattern, inputs=pattern.inputs[::-1])
    for k, inner in enumerate(pattern.inputs):
        for mistake, changed in _changed(inner):
            yield mistake, replace(pattern, inputs=(*pattern.inputs[:k], changed, *pattern.inputs[k + 1 :]))
