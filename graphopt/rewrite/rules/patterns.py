"""Patterns and expressions: what the two sides and the conditions of a rule are made of.

Patterns are terms with holes. `(conv $s [0,0,0,0] none ?x ?w)`: an operator, its parameters, its inputs. `?x` stands
for any term, `$s` for any value of a parameter; the same name is the same term or value everywhere in a rule. A
parameter in braces, `{kernel(?w)}`, is computed from what else is bound; in a source it is a condition.

Expressions are parameters that targets compute, and conditions:

| form | value |
|---|---|
| `3`, `none`, `[1,1]` | itself; `none` and other words are strings |
| `$s` | the parameter that the match binds |
| `?x` | the term that the match binds, as an argument of a function |
| `kernel(?w)`, `dim(?x, 1)` | a function of graphopt/rewrite/rules/conditions.py |
| `a = b`, also != < <= > >= | a condition; a function that answers yes or no is one too |

They are compiled to Python source, as part of the function that matches or builds (compiling.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from graphopt.rewrite.ir.vocabulary import text_of


@dataclass(frozen=True, slots=True)
class Literal:
    """A fixed value: a number, a word, or a tuple of them."""

    value: Any

    def __str__(self) -> str:
        return text_of(self.value)

    def source(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$s`: the value of a parameter."""

    name: str

    def __str__(self) -> str:
        return f"${self.name}"

    def source(self) -> str:
        return f"p_{self.name}"


@dataclass(frozen=True, slots=True)
class Variable:
    """`?x`: a term. It is a pattern, and in expressions an argument of functions."""

    name: str

    def __str__(self) -> str:
        return f"?{self.name}"

    def source(self) -> str:
        return f"v_{self.name}"


@dataclass(frozen=True, slots=True)
class Listed:
    """`[$h,$w]`: a tuple of expressions that are not all literals."""

    items: tuple["Expression", ...]

    def __str__(self) -> str:
        return "[" + ",".join(map(str, self.items)) + "]"

    def source(self) -> str:
        return "(" + "".join(f"{item.source()}, " for item in self.items) + ")"


@dataclass(frozen=True, slots=True)
class Call:
    """A function of its arguments; compiled with the store of terms as the first one."""

    function: str
    arguments: tuple["Expression", ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.arguments))})"

    def source(self) -> str:
        return f"{self.function}({', '.join(['terms', *(a.source() for a in self.arguments)])})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two expressions and how they must compare: one of COMPARED."""

    sign: str
    left: "Expression"
    right: "Expression"

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right}"

    def source(self) -> str:
        return f"{self.left.source()} {COMPARED[self.sign]} {self.right.source()}"


COMPARED = {"=": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
Expression = Literal | Parameter | Variable | Listed | Call
Condition = Call | Comparison


def parts(expression: Expression | Comparison) -> Iterator[Expression]:
    """The expression and all within it; of a comparison, those of both sides."""
    if isinstance(expression, Comparison):
        yield from parts(expression.left)
        yield from parts(expression.right)
        return
    yield expression
    inner = {Listed: "items", Call: "arguments"}.get(type(expression))
    for part in getattr(expression, inner) if inner else ():
        yield from parts(part)


def named(expression: Expression | Comparison) -> set[str]:
    """What the expression needs bound, with the sign in front: {"?x", "$s"}."""
    return {str(part) for part in parts(expression) if isinstance(part, Parameter | Variable)}


def atom(name: str) -> Variable | Parameter:
    """The expression that a name with its sign stands for."""
    return Variable(name[1:]) if name[0] == "?" else Parameter(name[1:])


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
