"""Rules as Python functions that match in classes of equal terms: a loop per node of the pattern.

As compiling.py does for terms; an input that is a pattern is any member of the class with that operator. For
`(relu (conv $s $p none ?x ?w))`:

    def match(roots, index, children, found):
        n1 = index.get('conv', EMPTY)
        for t0 in roots:
            c1, = children[t0]
            for t1 in n1.get(c1, ()):
                if not (len(children[t1]) == 2): continue
                v_x, v_w, = children[t1]
                p_s, p_p, q2, = operation[t1].params
                if not (q2 == 'none'): continue
                found.append((t0, (v_x, v_w, p_s, p_p, )))
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from graphopt.rewrite.compiling import Values, identifier, local_conditions, names_of
from graphopt.rewrite.conditions import FUNCTIONS
from graphopt.rewrite.expressions import Expression, Listed, Literal, Parameter, Variable, named
from graphopt.rewrite.patterns import Node
from graphopt.rewrite.rules import Rule, RuleError
from graphopt.rewrite.vocabulary import VOCABULARY

Found = list[tuple[int, Values]]
Index = Mapping[str, Mapping[int, Sequence[int]]]
MatchAll = Callable[[Sequence[int], Index, Mapping[int, tuple[int, ...]], Found], None]


@cache
def ematcher(rule: Rule, index: int) -> Callable[[Any], MatchAll]:
    """Makes the function that matches a source of a rule at nodes; given what holds types and operations."""
    writer = _Loops(rule, index)
    text = "\n".join(["def make(terms):", " operation = terms.operation", " def match(roots, index, children, found):",
                      *writer.before, "  for t0 in roots:", *writer.lines, " return match"])  # fmt: skip
    space: dict[str, Any] = {**FUNCTIONS, "EMPTY": {}}
    exec(compile(text, f"<rule {rule.name}>", "exec"), space)
    made: Callable[[Any], MatchAll] = space["make"]
    return made


def depth(node: Node) -> int:
    """How many nodes stand on one another in a pattern."""
    return 1 + max((depth(i) for i in node.inputs if isinstance(i, Node)), default=0)


class _Loops:
    """Writes the loops of one source, each node before those below it."""

    def __init__(self, rule: Rule, index: int) -> None:
        self.rule, self.before, self.lines = rule, list[str](), list[str]()
        self.bound: set[str] = set()
        self.late: list[tuple[str, Expression]] = []
        self.fresh, self.indent = 0, 3
        source = rule.sources[index]
        todo = [(source, "t0")]
        while todo:
            node, at = todo.pop(0)
            todo += self.node(node, at)
        for value, expression in self.late:
            if not named(expression) <= self.bound:
                raise RuleError(f"{rule.name}: {expression} uses what its own source does not bind")
            self.unless(f"{value} == {expression.source()}")
        for condition in local_conditions(rule, index):
            self.unless(condition.source())
        values = "".join(f"{identifier(name)}, " for name in names_of(source))
        self.write(f"found.append((t0, ({values})))")

    def write(self, line: str) -> None:
        self.lines.append(" " * self.indent + line)

    def unless(self, test: str) -> None:
        self.write(f"if not ({test}): continue")

    def node(self, node: Node, at: str) -> list[tuple[Node, str]]:
        """Binds parameters and inputs of a node, then loops over the members that its input patterns can be."""
        signature = VOCABULARY[node.operator]
        if signature.least != signature.most:
            self.unless(f"len(children[{at}]) == {len(node.inputs)}")
        self.params(node.params, f"operation[{at}].params")
        names = [self.target(i) for i in node.inputs]
        if names:
            self.write(f"{', '.join(names)}, = children[{at}]")
        for child, name in zip(node.inputs, names):
            if isinstance(child, Variable) and name != child.source():
                self.unless(f"{name} == {child.source()}")
        return [(child, self.loop(child, name)) for child, name in zip(node.inputs, names) if isinstance(child, Node)]

    def loop(self, child: Node, at: str) -> str:
        member = f"m{at}"
        self.before.append(f"  n{at} = index.get({child.operator!r}, EMPTY)")
        self.write(f"for {member} in n{at}.get({at}, ()):")
        self.indent += 1
        return member

    def params(self, params: tuple[Expression, ...], value: str) -> None:
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

    def target(self, part: Any) -> str:
        """The local name that a part is unpacked into: its own one where it is bound here."""
        if isinstance(part, Variable | Parameter) and str(part) not in self.bound:
            self.bound.add(str(part))
            return part.source()
        self.fresh += 1
        return f"q{self.fresh}"
