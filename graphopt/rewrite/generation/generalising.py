"""From equal concrete programs to rules: parameters become names, then conditions are found under which it holds.

A generalisation is tried from the most general one down. Parameters that occur on both sides are shared names (`$s`),
axes are shared names, counted from the end or the start, or fixed for a fixed rank. Where it holds for some shapes
only, conditions are chosen that all counterexamples break and the enumerated case meets (a greedy set cover).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, permutations, product, takewhile
from typing import Any

import numpy as np

from graphopt.rewrite.generation.instances import Instance, built, instances
from graphopt.rewrite.ir.terms import Terms
from graphopt.rewrite.ir.vocabulary import VOCABULARY, Shape
from graphopt.rewrite.rules.compiling import bound_names, test_of
from graphopt.rewrite.rules.rule import (
    Call,
    Comparison,
    Condition,
    Expression,
    Literal,
    Node,
    Parameter,
    Pattern,
    Rule,
    RuleError,
    Variable,
    checked,
    names_in,
    nodes,
)
from graphopt.rewrite.verify import Rejected, compare, verify

SHARED = {"strides": "s", "pads": "p", "kernel": "k", "permutation": "q", "shape": "r", "size": "k"}
FIXED = {"shared": (), "places": ("pads", "size"), "fixed": tuple(SHARED)}  # parameters that a rule fixes
CASES, TRIES, LEAST_TRUE, ATTEMPTS, ROUNDS, FINAL_CASES = 24, 160, 3, 2, 6, 250


@dataclass(frozen=True)
class ConcreteRule:
    """Concrete sources and targets: patterns with fixed parameters over inputs of known shapes."""

    sources: tuple[Node, ...]
    targets: tuple[Pattern, ...]
    shapes: dict[str, Shape]


def pattern_of(terms: Terms, term: int) -> Pattern:
    """A program as a pattern: its inputs are variables."""
    operation = terms.operation[term]
    if operation.name == "input":
        return Variable(operation.params[0])
    inputs = tuple(pattern_of(terms, i) for i in terms.inputs[term])
    return Node(operation.name, tuple(map(Literal, operation.params)), inputs)


def case_of(terms: Terms, sources: Sequence[int], targets: Sequence[int]) -> ConcreteRule | None:
    """The rule from some terms to others; None where a source is a mere input or a target has another input."""
    left = tuple(pattern_of(terms, source) for source in sources)
    right = tuple(pattern_of(terms, target) for target in targets)
    roots = tuple(source for source in left if isinstance(source, Node))
    names = names_in(roots)
    if len(roots) < len(left) or not names_in(right) <= names:
        return None
    if any(source in chain((target,), nodes((target,))) for source, target in zip(roots, right)):
        return None  # the target holds the source: it would grow for ever
    inputs = takewhile(lambda term: terms.operation[term].name == "input", range(len(terms)))  # they come first
    shapes = {f"?{terms.operation[term].params[0]}": terms.shape(term) for term in inputs}
    return ConcreteRule(roots, right, {name: shapes[name] for name in sorted(names)})


def generalised(case: ConcreteRule, name: str, rng: np.random.Generator) -> Rule | None:
    """The most general rule found that is true and has the case among its instances."""
    seen = set()
    for bare, params in _bare(case, name):
        if str(bare) not in seen:
            seen.add(str(bare))
            for _ in range(ATTEMPTS):  # cases are drawn at random: a failing condition may hold in another draw
                rule = with_conditions(bare, case.shapes, params, rng)
                if rule is not None:
                    return rule
    return None


def _bare(case: ConcreteRule, name: str) -> Iterator[tuple[Rule, dict[str, Any]]]:
    """Generalisations, and the values of their names in the case."""
    every = list(nodes((*case.sources, *case.targets)))
    four = any(node.operator in ("conv", "pool_max", "pool_avg") for node in every)
    counted = ("end", "plain") if any(node.operator == "matmul" for node in every) else ("plain", "end")
    axes = ("plain",) if four else ("shared", *counted, "fixed")
    for activation, axis, other in product(("shared", "fixed"), axes, ("shared", "places", "fixed")):
        maker = _Maker(case, activation, axis, other)
        try:
            sources = tuple(maker.node(source) for source in case.sources)
            targets = tuple(maker.pattern(target) for target in case.targets)
            conditions = maker.fixed_ranks() if axis == "fixed" else ()
            yield checked(Rule(name, sources, targets, conditions)), maker.params
        except (RuleError, _Unnameable):
            continue


class _Unnameable(Exception):
    """A parameter that this way of naming has no name for."""


class _Maker:
    """Puts names for the parameters of a case, in one way."""

    def __init__(self, case: ConcreteRule, activation: str, axis: str, other: str) -> None:
        self.case, self.activation, self.axis, self.other = case, activation, axis, other
        self.params: dict[str, Any] = {}
        self.names: dict[tuple[str, Any], str] = {}

    def pattern(self, pattern: Pattern) -> Pattern:
        return self.node(pattern) if isinstance(pattern, Node) else pattern

    def node(self, node: Node) -> Node:
        inputs = tuple(map(self.pattern, node.inputs))
        kinds = VOCABULARY[node.operator].params
        params = [self.param(kind, p.value, node) for kind, p in zip(kinds, node.params) if isinstance(p, Literal)]
        return Node(node.operator, tuple(params), inputs)

    def param(self, kind: str, value: Any, node: Node) -> Expression:
        if kind == "axis":
            return self.axis_of(value, node)
        if kind == "sizes":
            return self.sizes(value, node)
        if kind == "activation" and self.activation == "shared":
            return self.shared("f", value)
        if kind == "shape" or (kind in SHARED and kind not in FIXED[self.other]):
            return self.shared(SHARED[kind], value)
        return Literal(value)

    def shared(self, letter: str, value: Any) -> Parameter:
        key = (letter, value)
        if key not in self.names:
            count = sum(known == letter for known, _ in self.names)
            self.names[key] = letter + (str(count) if count else "")
            self.params[f"${self.names[key]}"] = value
        return Parameter(self.names[key])

    def axis_of(self, value: int, node: Node) -> Expression:
        if self.axis == "shared":
            return self.shared("a", value)
        if self.axis == "end":
            name = min(names_in((node,)))
            return Call("axis_of", (Variable(name[1:]), Literal(value - len(self.case.shapes[name]))))
        return Literal(value)

    def sizes(self, value: Any, node: Node) -> Expression:
        """As the concat within says; a name where there is none."""
        for inner in nodes(node.inputs):
            if inner.operator == "concat" and all(isinstance(i, Variable) for i in inner.inputs):
                (axis,) = (self.param("axis", p.value, inner) for p in inner.params if isinstance(p, Literal))
                return Call("sizes", (axis, *(i for i in inner.inputs if isinstance(i, Variable))))
        if any(inner.operator == "concat" for inner in nodes(node.inputs)):
            raise _Unnameable
        return self.shared("n", value)

    def fixed_ranks(self) -> tuple[Condition, ...]:
        return tuple(Comparison("=", Call("rank", (Variable(name[1:]),)), Literal(len(shape)))
                     for name, shape in self.case.shapes.items())  # fmt: skip


def with_conditions(bare: Rule, shapes: dict[str, Shape], params: dict[str, Any],
                    rng: np.random.Generator) -> Rule | None:  # fmt: skip
    """The rule with conditions under which verification lets it pass; None where none are found."""
    original = built(bare, shapes, params)
    if original is None or original.misfit or not holds(bare, original, rng):
        return None
    cases: dict[str, Instance] = {}
    for _ in range(ROUNDS):
        for granted in (False, True):
            more = islice(instances(bare, rng, TRIES, granted), CASES)
            cases |= {str(case): case for case in more}
        true = [case for case in cases.values() if holds(bare, case, rng)]
        if len(true) < LEAST_TRUE:
            return None
        false = [case for case in cases.values() if case not in true]
        chosen = _separating(bare, [original, *true], false)
        if chosen is None:
            return None
        rule = replace(bare, conditions=(*bare.conditions, *chosen))
        try:
            verify(rule, seed=int(rng.integers(1 << 30)), cases=FINAL_CASES)
            return rule
        except Rejected as error:
            if error.instance is None:
                return None
            cases[str(error.instance)] = error.instance
    return None


def holds(rule: Rule, case: Instance, rng: np.random.Generator) -> bool:
    """Whether both sides of a case exist and are equal."""
    if case.misfit:
        return False
    try:
        for _ in range(2):
            compare(rule, case, rng)
    except Rejected:
        return False
    return True


def _separating(rule: Rule, true: Sequence[Instance], false: Sequence[Instance]) -> tuple[Condition, ...] | None:
    """Conditions that the first true case meets and every false one breaks, with few true ones broken."""
    if not false:
        return ()
    options = []
    for condition in _candidates(rule):
        met = [_meets(rule, condition, case) for case in true]
        if met[0]:
            broken = frozenset(i for i, case in enumerate(false) if not _meets(rule, condition, case))
            options.append((condition, broken, met.count(False)))
    chosen: list[tuple[Condition, frozenset[int], int]] = []
    left = frozenset(range(len(false)))
    while left:
        best = max(options, key=lambda option: len(option[1] & left) - 3 * option[2], default=None)
        if best is None or not best[1] & left:
            return None
        chosen.append(best)
        left -= best[1]
    for option in list(chosen):
        rest = [other for other in chosen if other is not option]
        if frozenset().union(*(other[1] for other in rest)) >= frozenset(range(len(false))):
            chosen = rest
    return tuple(condition for condition, _, _ in chosen)


def _meets(rule: Rule, condition: Condition, case: Instance) -> bool:
    return bool(test_of(bound_names(rule), [condition], case.terms)(*case.values))


def _candidates(rule: Rule) -> Iterator[Condition]:
    """Candidate conditions of rules, simple ones first."""
    names = sorted(names_in(rule.sources))
    variables = [Variable(name[1:]) for name in names if name[0] == "?"]
    axes: list[Expression] = [Parameter(name[1:]) for name in names if name.startswith("$a")]
    every = list(nodes((*rule.sources, *rule.targets)))
    axes += dict.fromkeys(p for node in every if node.operator in ("concat", "split")
                          for p in node.params[:1] if isinstance(p, Literal | Call))  # fmt: skip
    four = any(node.operator in ("conv", "pool_max", "pool_avg", "enlarge") for node in every)
    equal: list[tuple[Expression, Expression]] = []
    for x, y in permutations(variables, 2):
        if x.name < y.name:
            yield Call("same_shape", (x, y))
            equal += ((Call("without", (axis, x)), Call("without", (axis, y))) for axis in axes)
            equal.append((Call("without_last", (x,)), Call("without_last", (y,))))
            ends = (0, 1) if four else (-1, -2)
            equal += ((Call("dim", (x, Literal(i))), Call("dim", (y, Literal(i)))) for i in ends)
            equal.append((Call("rank", (x,)), Call("rank", (y,))))
        if not four:
            yield Comparison(">=", Call("rank", (x,)), Call("rank", (y,)))
            equal.append((Call("dim", (x, Literal(-1))), Call("dim", (y, Literal(-2)))))
    pairs = [(x, w) for node in every if node.operator == "conv" for x, w in [node.inputs[:2]]
             if isinstance(x, Variable) and isinstance(w, Variable)]  # fmt: skip
    pairs += [(x, w) for x, w in permutations(variables, 2) if four and (x, w) not in pairs]
    for x, w in pairs:
        equal.append((Call("dim", (w, Literal(1))), Call("dim", (x, Literal(1)))))
    for (x, v), (y, w) in permutations(pairs[:6], 2):
        if str((x, v)) < str((y, w)):
            equal.append((Call("per_group", (x, v)), Call("per_group", (y, w))))
    for left, right in equal:
        yield Comparison("=", left, right)
    for x in variables:
        yield from (Comparison("=", Call("rank", (x,)), Literal(rank)) for rank in (2, 4))
        if four:
            yield Comparison("=", Call("kernel", (x,)), Literal((1, 1)))
    for name in (name for name in names if name.startswith("$n")):
        yield Comparison("=", Call("length", (Parameter(name[1:]),)), Literal(2))
