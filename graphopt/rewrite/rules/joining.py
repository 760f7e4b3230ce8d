"""Rules of several outputs: matches of their sources put together where they agree on what they share.

Shared are variables, parameters, and the two sides of `=` conditions; matches are looked up by them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from graphopt.rewrite.rules.compiling import function_of, test_of
from graphopt.rewrite.rules.expressions import Comparison, Expression, atom, named
from graphopt.rewrite.rules.pattern_writing import Values, names_of
from graphopt.rewrite.rules.rule import Rule

Found = list[tuple[int, Values]]  # where one source matches, and what it binds there by `names_of`
Place = tuple[tuple[int, ...], Values]  # where the sources of a rule match, and what they bind by `bound_names`


class _Step(NamedTuple):
    """How a further source is joined: its key from what is bound, its key from what it binds, what it adds."""

    left: Callable[..., Values]
    right: Callable[..., Values]
    new: tuple[int, ...]


class Join:
    """Of one rule. terms: what conditions ask for types."""

    def __init__(self, rule: Rule, terms: Any) -> None:
        self.steps: list[_Step] = []
        names = list(names_of(rule.sources[0]))
        for source in rule.sources[1:]:
            added = names_of(source)
            keys = equalities(rule, set(names), set(added))
            shared = [atom(name) for name in added if name in names]
            left = function_of(names, [*shared, *(one for one, _ in keys)], terms)
            right = function_of(added, [*shared, *(other for _, other in keys)], terms)
            new = tuple(place for place, name in enumerate(added) if name not in names)
            self.steps.append(_Step(left, right, new))
            names += [added[place] for place in new]
        self.holds = test_of(names, rule.conditions, terms)

    def places(self, founds: Sequence[Found], apart: Callable[[tuple[int, ...], int], bool]) -> list[Place]:
        """Places that agree, conditions aside (`holds` tells). founds: matches of each source. apart: whether a root
        may stand beside those before it."""
        places: list[Place] = [((root,), values) for root, values in founds[0]]
        for found, (left, right, new) in zip(founds[1:], self.steps):
            if not places:
                break
            by_key: dict[Values, Found] = {}
            for root, values in found:
                by_key.setdefault(right(*values), []).append((root, values))
            places = [
                ((*roots, root), (*values, *[more[place] for place in new]))
                for roots, values in places
                for root, more in by_key.get(left(*values), ())
                if apart(roots, root)
            ]
        return places


def equalities(rule: Rule, left: set[str], right: set[str]) -> list[tuple[Expression, Expression]]:
    """Conditions a = b of which one side needs only `left` and the other only `right` names: keys of a join."""
    found = []
    for condition in rule.conditions:
        if isinstance(condition, Comparison) and condition.sign == "=":
            a, b = condition.left, condition.right
            for one, other in ((a, b), (b, a)):
                if named(one) and named(other) and named(one) <= left and named(other) <= right:
                    found.append((one, other))
                    break
    return found
