"""Tensat's text form of TASO's substitutions as rules of ours, and proofs of them.

    (ewadd (matmul 0 ?a ?c) (matmul 0 ?b ?c))=>(matmul 0 (ewadd ?a ?b) ?c)

Activations are 0 none, 1 sigmoid, 2 relu, 3 tanh, and paddings 0 same, 1 valid; kernels are 3 x 3. A split cuts where
the concat below it joined. Additions and products take tensors of one shape. In the file of two-output rules, lines
2k-1 and 2k are the two outputs of one rule. The file does not say for which shapes a rule is meant: `readings` gives
narrower and narrower ones.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np

from graphopt.rewrite.egraphs.saturation import Prover, SaturationLimits
from graphopt.rewrite.generation.instances import Instance, instances
from graphopt.rewrite.rules.patterns import (
    Call,
    Comparison,
    Condition,
    Expression,
    Literal,
    Node,
    Pattern,
    Variable,
    names_in,
    nodes,
)
from graphopt.rewrite.rules.rule import Rule, checked
from graphopt.rewrite.verify import Rejected, compare

ACTIVATION = ("none", "sigmoid", "relu", "tanh")
NAMES = {"conv2d": "conv", "ewadd": "add", "ewmul": "mul"}
SHAPES, TRIES, CASES, DRAWS, LEAST_CASES, FURTHER = 3, 2000, 20, 2, 4, 5


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


def readings(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """What a rule may mean: all shapes that its two sides admit; convs of one group in its sources; and kernels of one
    shape. Later ones are meant where earlier ones are not true."""
    yield "all shapes", rule
    pairs = [(node.inputs[0], node.inputs[1]) for node in nodes(rule.sources) if node.operator == "conv"]
    plain = [(x, w) for x, w in pairs if isinstance(x, Variable) and isinstance(w, Variable)]
    if plain:
        groups = dict.fromkeys(Comparison("=", Call("groups", pair), Literal(1)) for pair in plain)
        rule = replace(rule, conditions=(*rule.conditions, *groups))
        yield "convs of one group", rule
        alike = [Call("same_shape", (v, w)) for (_, v), (_, w) in pairwise(plain) if v != w]
        yield "convs of one group with kernels of one shape", replace(rule, conditions=(*rule.conditions, *alike))


def refute(rule: Rule, *, cases: int = CASES, seed: int = 0) -> int:
    """Compares both sides in so many cases in which both exist, and one of them is wide; in how many. Raises Rejected,
    also where they exist together at most for results with a side of 1, at which strides and axes make no difference.
    """
    rng = np.random.default_rng(seed)
    checked_cases, wide = 0, False
    for case in instances(rule, rng, 2 * TRIES, granted=True):
        if case.misfit:
            raise Rejected(f"{rule.name}: the targets do not fit, {case.misfit}", case)
        for _ in range(DRAWS):
            compare(rule, case, rng)
        checked_cases, wide = checked_cases + 1, wide or is_wide(case)
        if checked_cases >= (cases if wide else FURTHER * cases):
            break
    if not wide:
        for case in instances(rule, rng, 2 * TRIES, granted=False):
            if case.misfit and is_wide(case):
                raise Rejected(f"{rule.name}: the targets fit at most where a side is 1", case)
    if checked_cases < LEAST_CASES:
        raise Rejected(f"{rule.name}: {checked_cases} shapes found that fit it")
    return checked_cases


def is_wide(case: Instance) -> bool:
    """Whether no side of what the sources make is 1."""
    return all(side > 1 for source in case.sources for side in case.terms.shape(source))


def true_reading(rule: Rule) -> tuple[str, Rule]:
    """The widest reading of a rule that is not refuted. Raises Rejected, with a counterexample if one is known."""
    refused: list[Rejected] = []
    for name, reading in readings(rule):
        try:
            refute(reading)
        except Rejected as error:
            refused.append(error)
            continue
        return name, reading
    raise next((error for error in refused if error.instance is not None), refused[0])


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
