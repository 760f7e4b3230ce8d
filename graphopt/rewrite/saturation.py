"""Proofs by equality saturation: an e-graph over terms, rules applied to it until two terms are equal.

An e-graph holds classes of equal terms; a node is an operation on classes (Nelson and Oppen 1980; Willsey et al., egg,
POPL 2021). Applying a rule only adds: the target becomes a member of the source's class. Rules here see the e-graph as
they see a store of terms, so the compiled conditions and builders of compiling.py serve both.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphopt.rewrite.compiling import bound_names, builder, test_of
from graphopt.rewrite.expressions import Call, Comparison, Expression, Listed, Literal, Parameter, Variable
from graphopt.rewrite.patterns import Node, Pattern
from graphopt.rewrite.rules import Rule
from graphopt.rewrite.terms import MAKES_SEVERAL, Terms, reachable
from graphopt.rewrite.vocabulary import Operation, ShapeError, TensorType, infer

Enode = tuple[Operation, tuple[int, ...]]
Binding = dict[str, Any]


class Equalities:
    """Classes of equal terms. Ids of classes stay valid when classes are merged: `find` says what they became.

    types, static: per id, as in Terms; equal terms have equal types, and are static if one of them is.
    """

    def __init__(self) -> None:
        self.types: list[tuple[TensorType, ...]] = []
        self.static: list[bool] = []
        self.nodes: list[list[Enode]] = []  # of classes that stand for themselves
        self._parent: list[int] = []
        self._users: list[list[tuple[Enode, int]]] = []
        self._known: dict[Enode, int] = {}
        self._stale: list[int] = []  # classes whose users must be looked at again

    def __len__(self) -> int:
        return len(self._known)

    def find(self, at: int) -> int:
        while self._parent[at] != at:
            self._parent[at] = at = self._parent[self._parent[at]]
        return at

    def classes(self) -> Iterator[int]:
        return (at for at, parent in enumerate(self._parent) if at == parent)

    def add(self, operation: Operation, inputs: Sequence[int] = ()) -> int:
        """The class of an operation on classes; a new one if it is not known. Raises ShapeError."""
        node = (operation, tuple([self.find(i) for i in inputs]))
        if node in self._known:
            return self.find(self._known[node])
        types = self._types(*node)
        made = len(self._parent)
        leaf = operation.name in ("weight", "fill", "identity_kernel", "mean_kernel")
        self._parent.append(made)
        self.types.append(types)
        self.static.append(leaf or (bool(inputs) and all(self.static[i] for i in node[1])))
        self.nodes.append([node])
        self._users.append([])
        self._known[node] = made
        for i in set(node[1]):
            self._users[i].append((node, made))
        return made

    def add_terms(self, terms: Terms, outputs: Iterable[int]) -> dict[int, int]:
        """Adds all that the outputs need; the class of every term."""
        classes: dict[int, int] = {}
        for term in reachable(terms, outputs):
            classes[term] = self.add(terms.operation[term], [classes[i] for i in terms.inputs[term]])
        return classes

    def _types(self, operation: Operation, inputs: tuple[int, ...]) -> tuple[TensorType, ...]:
        if operation.name == "item":
            return (self.types[inputs[0]][operation.params[0]],)
        if any(node[0].name in MAKES_SEVERAL for i in inputs for node in self.nodes[i]):
            raise ShapeError(f"{operation.name} reads all results of a split: pick one by item")
        return infer(operation, [self.types[i][0] for i in inputs])

    def merge(self, a: int, b: int) -> bool:
        """Makes two classes one; whether they were two. `rebuild` must follow before the next look-up."""
        a, b = self.find(a), self.find(b)
        if a == b or self.types[a] != self.types[b]:
            return False
        if len(self._users[a]) < len(self._users[b]):
            a, b = b, a
        self._parent[b] = a
        self.nodes[a] += self.nodes[b]
        self._users[a] += self._users[b]
        self.static[a] = self.static[a] or self.static[b]
        self.nodes[b], self._users[b] = [], []
        self._stale.append(a)
        return True

    def rebuild(self) -> None:
        """Restores congruence: the same operation on equal inputs is equal."""
        while self._stale:
            at = self.find(self._stale.pop())
            users, self._users[at] = self._users[at], []
            for (operation, inputs), made in users:
                self._known.pop((operation, inputs), None)
                node = (operation, tuple([self.find(i) for i in inputs]))
                known = self._known.get(node)
                if known is not None:
                    self.merge(known, made)
                self._known[node] = self.find(made)
                self._users[self.find(at)].append((node, self.find(made)))
        for at in self.classes():
            self.nodes[at] = list(dict.fromkeys((o, tuple([self.find(i) for i in ins])) for o, ins in self.nodes[at]))


@dataclass(frozen=True)
class Limits:
    """When saturation gives up."""

    iterations: int = 8
    nodes: int = 5_000


class Prover:
    """Rules made ready to saturate e-graphs. Those with several outputs prove nothing that others do not."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        plain = [_plain(rule) for rule in rules if len(rule.sources) == 1]
        self.rules = [(rule, bound_names(rule), builder(rule)) for rule in plain]

    def steps(self, pairs: Sequence[tuple[int, int]], equalities: Equalities, limits: Limits) -> int | None:
        """After how many rounds of all rules all pairs are equal; None where they are not within the limits."""
        view: Any = equalities  # it has what conditions and builders use of Terms: types, static, add
        ready = [(rule, (names, test_of(names, rule.conditions, view), build(view)))
                 for rule, names, build in self.rules]  # fmt: skip
        for round_ in range(limits.iterations + 1):
            if all(equalities.find(a) == equalities.find(b) for a, b in pairs):
                return round_
            if round_ == limits.iterations or not self._round(ready, equalities, limits):
                return None
        return None

    def _round(self, ready: Sequence[tuple[Rule, Any]], equalities: Equalities, limits: Limits) -> bool:
        """Applies every rule wherever it matches now; whether anything changed."""
        by_operator: dict[str, list[int]] = {}
        for at in equalities.classes():
            for name in {operation.name for operation, _ in equalities.nodes[at]}:
                by_operator.setdefault(name, []).append(at)
        found = [
            (build, at, values)
            for rule, (names, holds, build) in ready
            for at in by_operator.get(rule.sources[0].operator, ())
            for binding in _bindings(rule.sources[0], at, {}, equalities)
            if holds(*(values := [binding[name] for name in names]))
        ]
        before = len(equalities)
        changed = False
        for build, at, values in found:
            try:
                (target,) = build(*values)
            except ShapeError:
                continue
            changed |= equalities.merge(at, target)
            if len(equalities) > limits.nodes:
                break
        equalities.rebuild()
        return changed or len(equalities) != before


def _plain(rule: Rule) -> Rule:
    """The rule with computed parameters of its source as conditions on new names."""
    conditions: list[Comparison] = []

    def node(pattern: Node) -> Node:
        params = tuple(map(param, pattern.params))
        return Node(pattern.operator, params, tuple(node(i) if isinstance(i, Node) else i for i in pattern.inputs))

    def param(expression: Expression) -> Expression:
        if not isinstance(expression, Call):
            return expression
        conditions.append(Comparison("=", Parameter(f"computed{len(conditions)}"), expression))
        return conditions[-1].left

    return replace(rule, sources=(node(rule.sources[0]),), conditions=(*rule.conditions, *conditions))


def _bindings(pattern: Pattern, at: int, binding: Binding, equalities: Equalities) -> Iterator[Binding]:
    """Every way in which some member of a class is the pattern."""
    if isinstance(pattern, Variable):
        name = str(pattern)
        if name not in binding:
            yield {**binding, name: at}
        elif equalities.find(binding[name]) == at:
            yield binding
        return
    for operation, inputs in equalities.nodes[at]:
        if operation.name != pattern.operator or len(inputs) != len(pattern.inputs):
            continue
        bound = _params(pattern.params, operation.params, binding)
        if bound is not None:
            yield from _inputs(pattern.inputs, inputs, bound, equalities)


def _inputs(patterns: Sequence[Pattern], inputs: Sequence[int], binding: Binding,
            equalities: Equalities) -> Iterator[Binding]:  # fmt: skip
    if not patterns:
        yield binding
        return
    for bound in _bindings(patterns[0], equalities.find(inputs[0]), binding, equalities):
        yield from _inputs(patterns[1:], inputs[1:], bound, equalities)


def _params(params: Sequence[Expression], values: Sequence[Any], binding: Binding) -> Binding | None:
    for param, value in zip(params, values):
        if isinstance(param, Literal):
            if param.value != value:
                return None
        elif isinstance(param, Listed):
            inner = _params(param.items, value, binding) if len(value) == len(param.items) else None
            if inner is None:
                return None
            binding = inner
        else:
            name = str(param)
            if binding.get(name, value) != value:
                return None
            if name not in binding:
                binding = {**binding, name: value}
    return binding
