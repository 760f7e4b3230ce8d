"""Rewrite rules: sources, their targets, and conditions.

    conv_relu: (relu (conv $s $p none ?x ?w)) => (conv $s $p relu ?x ?w)
    merge: (matmul none ?x ?a), (matmul none ?x ?b) => (item 0 ...), (item 1 ...) where rank(?a) = 2, rank(?b) = 2

One rule a line; `#` starts a comment. The k-th source is replaced by the k-th target. `<=>` makes two rules, the second
one named `..._back`. parsing.py reads the text, conditions.py has the functions that conditions may call. Names do not
matter: `canonical` is a rule up to renaming.

Patterns are terms with holes. `(conv $s [0,0,0,0] none ?x ?w)`: an operator, its parameters, its inputs. `?x` stands
for any term, `$s` for any value of a parameter; the same name is the same term or value everywhere in a rule. A
parameter in braces, `{kernel(?w)}`, is computed from other bound names; in a source it is a condition.

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

import inspect
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from graphopt.core.errors import UserError
from graphopt.rewrite.ir.terms import LEAVES, MAKES_SEVERAL
from graphopt.rewrite.ir.vocabulary import VOCABULARY, Shape, text_of
from graphopt.rewrite.rules.conditions import FUNCTIONS, Term

NAME = re.compile(r"[?$]?[A-Za-z0-9_]+")


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


def parts(expression: Expression | Comparison) -> Iterator[Expression | Comparison]:
    """The expression and all within it."""
    yield expression
    inner: tuple[Expression, ...] = ()
    match expression:
        case Comparison():
            inner = (expression.left, expression.right)
        case Listed():
            inner = expression.items
        case Call():
            inner = expression.arguments
    for part in inner:
        yield from parts(part)


def named(expression: Expression | Comparison) -> set[str]:
    """Names that the expression needs bound, with the sign in front: {"?x", "$s"}."""
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
        computed = [isinstance(param, Variable | Call) for param in self.params]
        params = ["{" + str(param) + "}" if braces else str(param) for param, braces in zip(self.params, computed)]
        return f"({' '.join([self.operator, *params, *map(str, self.inputs)])})"


Pattern = Variable | Node


def nodes(patterns: tuple[Pattern, ...]) -> Iterator[Node]:
    """All nodes, users before their inputs; one that is written twice comes twice."""
    for pattern in patterns:
        if isinstance(pattern, Node):
            yield pattern
            yield from nodes(pattern.inputs)


def names_in(patterns: tuple[Pattern, ...]) -> set[str]:
    """Names in the patterns, signs in front: {"?x", "$s"}."""
    found = {str(p) for p in patterns if isinstance(p, Variable)}
    for node in nodes(patterns):
        found |= {str(i) for i in node.inputs if isinstance(i, Variable)}
        found |= set().union(*map(named, node.params))
    return found


class RuleError(UserError):
    """A rule says something that has no meaning."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Sources may be replaced by targets, one by one and all at once, where the conditions hold."""

    name: str
    sources: tuple[Node, ...]
    targets: tuple[Pattern, ...]
    conditions: tuple[Condition, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)  # rules are keys everywhere

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.name, self.sources, self.targets, self.conditions)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        sides = " => ".join(", ".join(map(str, side)) for side in (self.sources, self.targets))
        conditions = " where " + ", ".join(map(str, self.conditions)) if self.conditions else ""
        return f"{self.name}: {sides}{conditions}"


RuleSet = tuple[Rule, ...]


def checked(rule: Rule) -> Rule:
    """The rule, if it means something. Raises RuleError."""
    bound = names_in(rule.sources)
    loose = set().union(names_in(rule.targets), *map(named, rule.conditions)) - bound
    if len(rule.sources) != len(rule.targets):
        raise RuleError(f"{rule.name}: {len(rule.sources)} sources and {len(rule.targets)} targets; give equally many")
    if loose:
        raise RuleError(f"{rule.name}: {', '.join(sorted(loose))[:500]} does not occur in a source")
    strange = [name for name in bound if not NAME.fullmatch(name)]  # names become words of generated code
    if strange:
        raise RuleError(f"{rule.name}: {strange[0][:100]!r} is no name of a variable: letters, digits and _ only")
    for problem in (*_misused_functions(rule), *_misused_operators(rule)):
        raise RuleError(f"{rule.name}: {problem}")
    return rule


class Takes(NamedTuple):
    """Kinds of a function's arguments after the store of terms: fixed ones, further ones (None: no further), and the
    kind of its result."""

    fixed: tuple[Any, ...]
    further: Any
    result: Any


KINDS = {Term: "a ?variable", int: "a whole number", Shape: "a list of whole numbers", bool: "yes or no"}


@cache
def _takes(function: str) -> Takes:
    hints = typing.get_type_hints(FUNCTIONS[function])
    parameters = list(inspect.signature(FUNCTIONS[function]).parameters.values())[1:]
    fixed = tuple(hints[p.name] for p in parameters if p.kind is not p.VAR_POSITIONAL)
    return Takes(fixed, hints[parameters[-1].name] if len(fixed) < len(parameters) else None, hints["return"])


def _misused_functions(rule: Rule) -> Iterator[str]:
    params = (param for node in nodes((*rule.sources, *rule.targets)) for param in node.params)
    calls = (part for e in (*params, *rule.conditions) for part in parts(e) if isinstance(part, Call))
    for call in calls:
        takes, given = _takes(call.function), call.arguments
        more = len(given) - len(takes.fixed)
        if more < 0 or (more and takes.further is None):
            count = f"{len(takes.fixed)}{' or more' if takes.further else ''}"
            yield f"{call.function} takes {count} arguments, not {len(given)}"
        for argument, wanted in zip(given, [*takes.fixed, *[takes.further] * more]):
            if not _fits(argument, wanted):
                yield f"{call.function} takes {KINDS[wanted]}, not {str(argument)[:100]}"


def _fits(argument: Expression, wanted: Any) -> bool:
    match argument:
        case Variable():
            return wanted is Term
        case Call():
            return bool(_takes(argument.function).result == wanted)
        case Listed():
            return bool(wanted == Shape)
        case Literal():
            items = argument.value if wanted == Shape else (argument.value,)
            return wanted is not Term and isinstance(items, tuple) and all(type(item) is int for item in items)
    return wanted is not Term


def _misused_operators(rule: Rule) -> Iterator[str]:
    """Also operators of several results: these have no shape of their own, so only an item of them may be used."""
    for node in nodes((*rule.sources, *rule.targets)):
        signature = VOCABULARY.get(node.operator)
        if signature is None:
            yield f"no operator {node.operator!r}; there are {', '.join(VOCABULARY)}"
        elif not signature.least <= len(node.inputs) <= signature.most:
            yield f"{node.operator} takes {signature.least} to {signature.most} inputs, not {len(node.inputs)}"
    for side in (*rule.sources, *rule.targets):
        if isinstance(side, Node) and side.operator in MAKES_SEVERAL:
            yield f"{side.operator} makes several tensors: pick one by item"
    for node in nodes((*rule.sources, *rule.targets)):
        for child in node.inputs:
            several = isinstance(child, Node) and child.operator in MAKES_SEVERAL
            if several and node.operator != "item":
                yield f"{node.operator} reads all results of {str(child)[1:].split()[0]}: pick one by item"
            if node.operator == "item" and not several:
                yield f"item picks a tensor of {' or '.join(sorted(MAKES_SEVERAL))}, not of {str(child)[:100]}"
    for node in nodes(rule.sources):
        if node.operator in LEAVES or node.operator == "opaque":
            yield f"{node.operator} cannot be matched: write ?x for it"


def canonical(rule: Rule) -> Rule:
    """The nameless rule with its names replaced by x0, x1, ... in the order in which they occur."""
    order: dict[Variable | Parameter, str] = {}

    def renamed(part: Any) -> Any:
        match part:
            case Variable() | Parameter():
                return type(part)(order.setdefault(part, f"x{len(order)}"))
            case tuple():
                return tuple(map(renamed, part))
            case Node() | Listed() | Call() | Comparison():
                return type(part)(*(renamed(getattr(part, name)) for name in part.__match_args__))
        return part

    return Rule("", renamed(rule.sources), renamed(rule.targets), renamed(rule.conditions))


def symmetric(rule: Rule) -> bool:
    """Whether the sources may change places: the rule looks the same but for names, which side of a concat aside."""
    if len(rule.sources) != 2:
        return False
    swapped = Rule("", rule.sources[::-1], rule.sources[::-1], rule.conditions)
    plain, mirror = (canonical(Rule("", r.sources, r.sources, r.conditions)) for r in (rule, swapped))
    return plain.sources == mirror.sources and set(map(_unordered, plain.conditions)) == set(
        map(_unordered, mirror.conditions)
    )


def _unordered(condition: Condition) -> object:
    if isinstance(condition, Comparison) and condition.sign in ("=", "!="):
        return (condition.sign, frozenset((condition.left, condition.right)))
    if isinstance(condition, Call) and condition.function in ("same_shape", "differ"):
        return (condition.function, frozenset(condition.arguments))
    return condition
