"""Rewrite rules: what may be replaced by what, and when.

    conv_relu: (relu (conv $s $p none ?x ?w)) => (conv $s $p relu ?x ?w)
    merge: (matmul none ?x ?a), (matmul none ?x ?b) => (item 0 ...), (item 1 ...) where rank(?a) = 2, rank(?b) = 2

One rule a line; `#` starts a comment. The k-th source is replaced by the k-th target. `<=>` makes two rules, the second
one named `..._back`. parsing.py reads the text, conditions.py has the functions that conditions may call. Names do not
matter: `canonical` is a rule up to renaming.
"""

import inspect
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from graphopt.core.errors import UserError
from graphopt.rewrite.ir.terms import LEAVES, MAKES_SEVERAL
from graphopt.rewrite.ir.vocabulary import VOCABULARY, Shape
from graphopt.rewrite.rules.conditions import FUNCTIONS, Term
from graphopt.rewrite.rules.patterns import (
    Call,
    Comparison,
    Condition,
    Expression,
    Listed,
    Literal,
    Node,
    Parameter,
    Pattern,
    Variable,
    named,
    names_in,
    nodes,
    parts,
)

_KINDS = {Term: "a ?variable", int: "a whole number", Shape: "a list of whole numbers", bool: "yes or no"}


def misuse(call: Call) -> str:
    """What is wrong with the arguments of a call; empty where nothing is."""
    takes, more = _takes(call.function)
    given = call.arguments
    if len(given) < len(takes) or (len(given) > len(takes) and more is None):
        return f"{call.function} takes {len(takes)}{' or more' if more else ''} arguments, not {len(given)}"
    for argument, wanted in zip(given, [*takes, *[more] * (len(given) - len(takes))]):
        if not _fits(argument, wanted):
            return f"{call.function} takes {_KINDS[wanted]}, not {str(argument)[:100]}"
    return ""


def _fits(argument: Expression, wanted: Any) -> bool:
    if isinstance(argument, Variable) or wanted is Term:
        return isinstance(argument, Variable) and wanted is Term
    if isinstance(argument, Call):
        return bool(_hints(argument.function)["return"] == wanted)
    if isinstance(argument, Listed):
        return bool(wanted == Shape)
    return isinstance(argument, Parameter) or _is(argument, wanted)


def _is(literal: Literal, wanted: Any) -> bool:
    items = literal.value if wanted == Shape else (literal.value,)
    return isinstance(items, tuple) and all(type(item) is int for item in items)


@cache
def _takes(function: str) -> tuple[tuple[Any, ...], Any]:
    """(kinds of its arguments but the store of terms, the kind of any further ones or None)."""
    named = list(inspect.signature(FUNCTIONS[function]).parameters.values())[1:]
    fixed = tuple(_hints(function)[p.name] for p in named if p.kind is not p.VAR_POSITIONAL)
    return fixed, next((_hints(function)[p.name] for p in named if p.kind is p.VAR_POSITIONAL), None)


def _hints(function: str) -> dict[str, Any]:
    return typing.get_type_hints(FUNCTIONS[function])


NAME = re.compile(r"[?$]?[A-Za-z0-9_]+")


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
    for problem in _misuses(rule):
        raise RuleError(f"{rule.name}: {problem}")
    return rule


def _calls(rule: Rule) -> Iterator[Call]:
    """Every call of a function, in conditions and in parameters of targets."""
    params = (param for node in nodes((*rule.sources, *rule.targets)) for param in node.params)
    for expression in (*params, *rule.conditions):
        yield from (part for part in parts(expression) if isinstance(part, Call))


def _misuses(rule: Rule) -> Iterator[str]:
    yield from filter(None, map(misuse, _calls(rule)))
    for node in nodes((*rule.sources, *rule.targets)):
        signature = VOCABULARY.get(node.operator)
        if signature is None:
            yield f"no operator {node.operator!r}; there are {', '.join(VOCABULARY)}"
        elif not signature.least <= len(node.inputs) <= signature.most:
            yield f"{node.operator} takes {signature.least} to {signature.most} inputs, not {len(node.inputs)}"
    yield from _several(rule)
    for node in nodes(rule.sources):
        if node.operator in LEAVES or node.operator == "opaque":
            yield f"{node.operator} cannot be matched: write ?x for it"


def _several(rule: Rule) -> Iterator[str]:
    """What makes several tensors has no shape of its own, so only an item of it may be used."""
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
