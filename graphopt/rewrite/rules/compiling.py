"""Rules as Python functions: one per source that matches it at a term, one that builds the targets.

Matching is the inner loop of every search, so a pattern is turned into straight-line Python once: names of operators
are compared first, then parameters, then conditions. For `(relu (conv $s $p none ?x ?w))`:

    def match(t0):
        t1, = inputs[t0]
        ot1 = operation[t1]
        if not (ot1.name == 'conv'): return None
        if not (len(inputs[t1]) == 2): return None
        v_x, v_w, = inputs[t1]
        p_s, p_p, t2, = ot1.params
        if not (t2 == 'none'): return None
        return (v_x, v_w, p_s, p_p, )
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from graphopt.rewrite.ir.terms import Terms
from graphopt.rewrite.ir.vocabulary import VOCABULARY, Operation
from graphopt.rewrite.rules.conditions import NAMES
from graphopt.rewrite.rules.rule import (
    Condition,
    Expression,
    Listed,
    Literal,
    Node,
    Parameter,
    Pattern,
    Rule,
    RuleError,
    Variable,
    atom,
    named,
    names_in,
)

Values = tuple[Any, ...]


@cache
def names_of(source: Node) -> tuple[str, ...]:
    """Names that a match of the source binds, in the order of the values that its function returns."""
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
        self.late: list[tuple[str, Expression]] = []  # parameters that are computed from bound names
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
        self.values = f"({''.join(f'{atom(name).source()}, ' for name in names_of(source))})"

    @abstractmethod
    def node(self, node: Node, at: str) -> list[tuple[Node, str]]:
        """Writes the conditions of a node; returns its inputs that are nodes, and their local names."""

    def write(self, line: str) -> None:
        self.lines.append(" " * self.indent + line)

    def unless(self, test: str) -> None:
        self.write(f"if not ({test}): {self.miss}")

    def inputs(self, node: Node, value: str) -> list[tuple[Node, str]]:
        """Binds the inputs of a node, or compares them with bound ones; returns those that are nodes."""
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
        """Binds a tuple of parameters, or compares it with known values."""
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


MatchFunction = Callable[[int], Values | None]
BuildFunction = Callable[..., tuple[int, ...]]


@cache
def matcher(rule: Rule, index: int) -> Callable[[Terms], MatchFunction]:
    """Makes the function that matches a source of a rule at terms of a store."""
    lines = _Emitter(rule, index).lines
    head = "def make(terms):\n operation, inputs = terms.operation, terms.inputs\n def match(t0):\n"
    made: Callable[[Terms], MatchFunction] = _compiled(head + "\n".join(lines) + "\n return match\n", rule)
    return made


@cache
def builder(rule: Rule) -> Callable[[Terms], BuildFunction]:
    """Makes the function that builds the targets of a rule from the values of `bound_names(rule)`."""
    lines: list[str] = []
    known: dict[Pattern, str] = {}
    roots = [_build_lines(target, lines, known) for target in rule.targets]
    names = ", ".join(atom(name).source() for name in bound_names(rule))
    head = f"def make(terms):\n add = terms.add\n def build({names}):\n  "
    body = "\n  ".join([*lines, f"return ({''.join(f'{root}, ' for root in roots)})"])
    made: Callable[[Terms], BuildFunction] = _compiled(head + body + "\n return build\n", rule)
    return made


@cache
def bound_names(rule: Rule) -> tuple[str, ...]:
    """Names that a match of all sources binds: those of the first, then the additional ones of each further source."""
    return tuple(dict.fromkeys(name for source in rule.sources for name in names_of(source)))


def function_of(names: Sequence[str], expressions: Sequence[Expression], terms: Terms) -> Callable[..., Values]:
    """The values of expressions, as a function of the values of names."""
    made: Callable[..., Values] = _function(tuple(names), f"({''.join(f'{e.source()}, ' for e in expressions)})")(terms)
    return made


def test_of(names: Sequence[str], conditions: Sequence[Condition], terms: Terms) -> Callable[..., bool]:
    """Whether all conditions hold, as a function of the values of names."""
    text = " and ".join(condition.source() for condition in conditions) or "True"
    made: Callable[..., bool] = _function(tuple(names), text)(terms)
    return made


@cache
def _function(names: tuple[str, ...], text: str) -> Callable[[Terms], Callable[..., Any]]:
    made: Callable[[Terms], Callable[..., Any]] = eval(
        f"lambda terms: lambda {', '.join(atom(name).source() for name in names)}: {text}", dict(NAMES)
    )
    return made


def _compiled(text: str, rule: Rule) -> Any:
    space: dict[str, Any] = {**NAMES, "Operation": Operation}
    exec(compile(text, f"<rule {rule.name}>", "exec"), space)
    return space["make"]


class _Emitter(PatternWriter):
    """Writes the lines that match one source at a term."""

    def __init__(self, rule: Rule, index: int) -> None:
        super().__init__(rule, index, "return None", 2)
        self.write(f"return {self.values}")

    def node(self, node: Node, at: str) -> list[tuple[Node, str]]:
        found = self.inputs(node, f"inputs[{at}]")
        for child, name in found:
            self.write(f"o{name} = operation[{name}]")
            self.unless(f"o{name}.name == {child.operator!r}")
        self.params(node.params, "operation[t0].params" if at == "t0" else f"o{at}.params")
        return found


def _build_lines(pattern: Pattern, lines: list[str], known: dict[Pattern, str]) -> str:
    """Appends the lines that build the pattern, once; returns the local name of the result."""
    if isinstance(pattern, Variable):
        return pattern.source()
    if pattern not in known:
        inputs = "".join(f"{_build_lines(i, lines, known)}, " for i in pattern.inputs)
        params = "".join(f"{param.source()}, " for param in pattern.params)
        name = f"t{len(known)}"
        lines.append(f"{name} = add(Operation({pattern.operator!r}, ({params})), ({inputs}))")
        known[pattern] = name
    return known[pattern]
