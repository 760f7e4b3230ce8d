"""Writes what patterns ask for as lines of Python: the part that matching at terms and in classes has in common."""

from abc import ABC, abstractmethod
from collections import deque
from functools import cache
from typing import Any

from graphopt.rewrite.ir.vocabulary import VOCABULARY
from graphopt.rewrite.rules.expressions import Condition, Expression, Listed, Literal, Parameter, Variable, named
from graphopt.rewrite.rules.patterns import Node, Pattern, names_in
from graphopt.rewrite.rules.rule import Rule, RuleError

Values = tuple[Any, ...]


def identifier(name: str) -> str:
    """`?x` -> `v_x`, `$s` -> `p_s`: names in compiled functions."""
    return {"?": "v_", "$": "p_"}[name[0]] + name[1:]


@cache
def names_of(source: Node) -> tuple[str, ...]:
    """What a match of the source binds, in the order of the values that its function returns."""
    return tuple(sorted(names_in((source,)), reverse=True))


def local_conditions(rule: Rule, index: int) -> tuple[Condition, ...]:
    """Conditions that can be decided from one source alone."""
    bound = set(names_of(rule.sources[index]))
    return tuple(condition for condition in rule.conditions if named(condition) <= bound)


class PatternWriter(ABC):
    """Writes the lines that match one source of a rule, breadth first from its root `t0`.

    miss: the statement where something does not match. values: at the end, the text of the tuple that is bound.
    """

    def __init__(self, rule: Rule, index: int, miss: str, indent: int) -> None:
        self.lines: list[str] = []
        self.miss, self.indent = miss, indent
        self.bound: set[str] = set()
        self.late: list[tuple[str, Expression]] = []  # parameters that are computed from what is bound
        self.fresh = 0
        source = rule.sources[index]
        todo = deque([(source, "t0")])
        while todo:
            todo += self.node(*todo.popleft())
        for value, expression in self.late:
            if not named(expression) <= self.bound:
                raise RuleError(f"{rule.name}: {expression} uses what its own source does not bind")
            self.unless(f"{value} == {expression.source()}")
        for condition in local_conditions(rule, index):
            self.unless(condition.source())
        self.values = f"({''.join(f'{identifier(name)}, ' for name in names_of(source))})"

    @abstractmethod
    def node(self, node: Node, at: str) -> list[tuple[Node, str]]:
        """Writes what a node asks for; its inputs that are nodes, and the local names of where they are."""

    def write(self, line: str) -> None:
        self.lines.append(" " * self.indent + line)

    def unless(self, test: str) -> None:
        self.write(f"if not ({test}): {self.miss}")

    def inputs(self, node: Node, value: str) -> list[tuple[Node, str]]:
        """Binds the inputs of a node, or compares them with what is bound; those that are nodes."""
        signature = VOCABULARY[node.operator]
        if signature.least != signature.most:
            self.unless(f"len({value}) == {len(node.inputs)}")
        names = [self.target(i) for i in node.inputs]
        if names:
            self.write(f"{', '.join(names)}, = {value}")
        for child, name in zip(node.inputs, names):
            if isinstance(child, Variable) and name != child.source():
                self.unless(f"{name} == {child.source()}")
        return [(child, name) for child, name in zip(node.inputs, names) if isinstance(child, Node)]

    def params(self, params: tuple[Expression, ...], value: str) -> None:
        """Binds a tuple of parameters, or compares it with what is known."""
        if not params:
            return
        names = [self.target(param) for param in params]
        self.write(f"{', '.join(names)}, = {value}")
        for param, name in zip(params, names):
            if isinstance(param, Listed):
                self.unless(f"len({name}) == {len(param.items)}")
                self.params(param.items, name)
            elif isinstance(param, Literal | Parameter):
                if name != param.source():
                    self.unless(f"{name} == {param.source()}")
            else:
                self.late.append((name, param))

    def target(self, part: Pattern | Expression) -> str:
        """The local name that a part is unpacked into: its own one where it is bound here."""
        if isinstance(part, Variable | Parameter) and str(part) not in self.bound:
            self.bound.add(str(part))
            return part.source()
        self.fresh += 1
        return f"t{self.fresh}"
