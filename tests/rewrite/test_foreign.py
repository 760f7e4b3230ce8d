"""Every substitution of TASO's, in Tensat's text form, follows from the generated rules.

    (ewadd (matmul 0 ?a ?c) (matmul 0 ?b ?c))=>(matmul 0 (ewadd ?a ?b) ?c)

Activations are 0 none, 1 sigmoid, 2 relu, 3 tanh, and paddings 0 same, 1 valid; kernels are 3 x 3. A split cuts where
the concat below it joined. Additions and products take tensors of one shape. In the file of two-output rules, lines
2k-1 and 2k are the two outputs of one rule.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest
from check_data import check_data

from graphopt.rewrite.egraphs.saturation import Prover, SaturationLimits
from graphopt.rewrite.generation.instances import Instance, instances
from graphopt.rewrite.rules.parsing import load_rules
from graphopt.rewrite.rules.rule import (
    Call,
    Comparison,
    Condition,
    Expression,
    Literal,
    Node,
    Pattern,
    Rule,
    Variable,
    checked,
    names_in,
    nodes,
)

ACTIVATION = ("none", "sigmoid", "relu", "tanh")
NAMES = {"conv2d": "conv", "ewadd": "add", "ewmul": "mul"}
SHAPES, TRIES, CASES = 3, 2000, 6
# The file does not say for which shapes a rule is meant. All but these are true for all shapes that both sides admit.
ONE_GROUP = {90, 91, 92, 97, 114, 115, 116, 117, 118, 131, 132}  # true of convs of one group
ONE_SHAPE = {91, 92, 117, 118}  # and of kernels of one shape


def rules_in(text: str, outputs: int = 1) -> list[Rule]:
    """The rules of a file; so many lines each."""
    lines = [line for line in text.splitlines() if line.strip()]
    return [_rule(f"tensat_{k}", lines[k : k + outputs]) for k in range(0, len(lines), outputs)]


def _rule(name: str, lines: Sequence[str]) -> Rule:
    """With conditions for what Tensat takes for granted: ranks, as its concats state them, and sizes of kernels."""
    sides = [line.split("=>") for line in lines]
    sources, targets = ([_pattern(re.findall(r"[()]|[^\s()]+", side[k]))[0] for side in sides] for k in (0, 1))
    ranks = {int(rank) for line in lines for rank in re.findall(r"\(concat \d+ (\d+)", line)}
    roots = tuple(source for source in sources if isinstance(source, Node))
    every = list(nodes((*sources, *targets)))
    kernels = {name for node in every if node.operator == "conv" for name in names_in((node.inputs[1],))}
    ranks = {4} if kernels else ranks
    conditions: list[Condition] = []
    for x in sorted(names_in(roots)):
        conditions += [Comparison("=", Call("rank", (Variable(x[1:]),)), Literal(rank)) for rank in ranks]
    conditions += [Comparison("=", Call("kernel", (Variable(w[1:]),)), Literal((3, 3))) for w in sorted(kernels)]
    return checked(Rule(name, roots, tuple(targets), tuple(conditions)))


def _pattern(tokens: list[str]) -> list[Pattern]:
    """The results of the next pattern, which is taken from the tokens."""
    token = tokens.pop(0)
    if token != "(":
        return [Variable(token[1:])]
    operator, numbers, inputs = tokens.pop(0), list[int](), list[Pattern]()
    while tokens[0] != ")":
        if tokens[0].isdigit():
            numbers.append(int(tokens.pop(0)))
        else:
            inputs += _pattern(tokens)
    tokens.pop(0)
    match operator:
        case "split_0" | "split_1":
            return [inputs[int(operator[-1])]]
        case "split":
            split = Node("split", (Literal(numbers[0]), _joined_sizes(inputs[0])), tuple(inputs))
            return [Node("item", (Literal(part),), (split,)) for part in (0, 1)]
        case "conv2d":
            pads = (1, 1, 1, 1) if numbers[2] == 0 else (0, 0, 0, 0)
            params = [Literal((numbers[0], numbers[1])), Literal(pads), Literal(ACTIVATION[numbers[3]])]
        case "matmul":
            params = [Literal(ACTIVATION[numbers[0]])]
        case _:
            params = [Literal(axis) for axis in numbers[:1]]
    return [Node(NAMES.get(operator, operator), tuple(params), tuple(inputs))]


def _joined_sizes(pattern: Pattern) -> Expression:
    """The sizes that the concat within a pattern joins."""
    for node in nodes((pattern,)):
        if node.operator == "concat" and all(isinstance(i, Variable) for i in node.inputs):
            return Call("sizes", (*node.params, *(i for i in node.inputs if isinstance(i, Variable))))
    raise ValueError("a split cuts what no concat joined")


def reading(rule: Rule, number: int) -> Rule:
    """The widest in which a substitution is true (docs/rewriting.md)."""
    pairs = [node.inputs[:2] for node in nodes(rule.sources) if node.operator == "conv"]
    plain = [(x, w) for x, w in pairs if isinstance(x, Variable) and isinstance(w, Variable)]
    more: list[Condition] = []
    if number in ONE_GROUP:
        more += dict.fromkeys(Comparison("=", Call("groups", pair), Literal(1)) for pair in plain)
    if number in ONE_SHAPE:
        more += [Call("same_shape", (v, w)) for (_, v), (_, w) in pairwise(plain) if v != w]
    return replace(rule, conditions=(*rule.conditions, *more))


def proof(rule: Rule, prover: Prover) -> int | None:
    """After how many rounds of saturation both sides are equal at several shapes; None where they are not. Of many
    shapes those with the fewest sides of 1 are taken, which make most differ."""

    def ones(case: Instance) -> int:
        return sum(result.shape.count(1) for types in case.terms.types for result in types)

    drawn = list(islice(instances(rule, np.random.default_rng(0), TRIES, granted=True), CASES))
    rounds = [prover.steps(case.terms, list(zip(case.sources, case.targets)), SaturationLimits())
              for case in sorted(drawn, key=ones)[:SHAPES]]  # fmt: skip
    known = [r for r in rounds if r is not None]
    return max(known) if known and len(known) == len(rounds) else None


@pytest.mark.slow
def test_every_substitution_is_proved() -> None:
    folder, prover = check_data("rewriting"), Prover(load_rules("generated"))
    single, several = ((folder / f"tensat_converted{name}.txt").read_text() for name in ("", "_multi"))
    rules = [*rules_in(single), *rules_in(several, outputs=2)]
    rounds = [proof(reading(rule, number), prover) for number, rule in enumerate(rules)]
    assert len(rules) == 133 and set(rounds) == {1, 2, 3, 4}
