"""Rewrite rules: what may be replaced by what, and when.

    conv_relu: (relu (conv $s $p none ?x ?w)) => (conv $s $p relu ?x ?w)
    merge: (matmul none ?x ?a), (matmul none ?x ?b) => (item 0 ...), (item 1 ...) where rank(?a) = 2, rank(?b) = 2

One rule a line; `#` starts a comment. The k-th source is replaced by the k-th target. `<=>` makes two rules, the second
one named `..._back`. parsing.py reads the text, conditions.py has the functions that conditions may call.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from graphopt.errors import UserError
from graphopt.rewrite.ir.terms import LEAVES, MAKES_SEVERAL
from graphopt.rewrite.ir.vocabulary import VOCABULARY
from graphopt.rewrite.rules.arguments import misuse
from graphopt.rewrite.rules.expressions import Call, Condition, named, parts
from graphopt.rewrite.rules.patterns import Node, Pattern, names_in, nodes

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
