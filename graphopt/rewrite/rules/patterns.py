"""Patterns: terms with holes, as the two sides of a rule.

`(conv $s [0,0,0,0] none ?x ?w)`: an operator, its parameters, its inputs. `?x` stands for any term, `$s` for any value
of a parameter; the same name is the same term or value everywhere in a rule. A parameter in braces, `{kernel(?w)}`, is
computed from what else is bound; in a source it is a condition.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from graphopt.rewrite.rules.expressions import Expression, Literal, Parameter, Variable, named


@dataclass(frozen=True, slots=True)
class Node:
    """An operator applied to patterns."""

    operator: str
    params: tuple[Expression, ...]
    inputs: tuple["Pattern", ...]

    def __str__(self) -> str:
        return f"({' '.join([self.operator, *map(_param_text, self.params), *map(str, self.inputs)])})"


Pattern = Variable | Node


def _param_text(param: Expression) -> str:
    simple = isinstance(param, Literal | Parameter) or str(param).startswith("[")
    return str(param) if simple else "{" + str(param) + "}"


def nodes(patterns: tuple[Pattern, ...]) -> Iterator[Node]:
    """All nodes, users before their inputs; one that is written twice comes twice."""
    for pattern in patterns:
        if isinstance(pattern, Node):
            yield pattern
            yield from nodes(pattern.inputs)


def names_in(patterns: tuple[Pattern, ...]) -> set[str]:
    """What the patterns mention, signs in front: {"?x", "$s"}."""
    found = {str(p) for p in patterns if isinstance(p, Variable)}
    for node in nodes(patterns):
        found |= {str(i) for i in node.inputs if isinstance(i, Variable)}
        found |= set().union(*map(named, node.params))
    return found
