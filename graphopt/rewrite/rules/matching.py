"""Finds where rules match, and the terms that they make there.

Terms never change, so where single-output rules match is found out once per term. After a rewrite only new terms, those
on the path from the change to the outputs, are looked at. The sources of a rule of several outputs are matched per term
in the same way, and joined for each program over their common names. These are variables, parameters, and the two sides
of `=` conditions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from graphopt.rewrite.ir.terms import Terms, reaches
from graphopt.rewrite.ir.vocabulary import ShapeError
from graphopt.rewrite.rules.compiling import (
    BuildFunction,
    MatchFunction,
    Values,
    bound_names,
    builder,
    function_of,
    matcher,
    names_of,
    test_of,
)
from graphopt.rewrite.rules.rule import Comparison, Expression, Rule, atom, named, symmetric

Found = list[tuple[int, Values]]  # where one source matches, and the values of `names_of` there
Place = tuple[tuple[int, ...], Values]  # where the sources of a rule match, and the values of `bound_names`


class _Step(NamedTuple):
    """How a further source is joined: its key from names bound before, its key from its own, the names it adds."""

    left: Callable[..., Values]
    right: Callable[..., Values]
    new: tuple[int, ...]


class Join:
    """Of one rule. terms: the store that conditions ask for types."""

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


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A rule, the terms that it would replace, and the values of its names; one object per place."""

    rule: Rule
    roots: tuple[int, ...]
    values: Values

    @property
    def binding(self) -> dict[str, Any]:
        """`?x` -> a term, `$s` -> a value."""
        return dict(zip(bound_names(self.rule), self.values))


class Matcher:
    """Matches rules in programs of one store of terms, and remembers everything it found out."""

    def __init__(self, rules: Sequence[Rule], terms: Terms) -> None:
        self.terms = terms
        self._single: dict[str, list[tuple[Rule, MatchFunction]]] = {}
        self._several: dict[str, list[tuple[int, MatchFunction]]] = {}
        self._joins: list[_Several] = []
        self._build: dict[Rule, BuildFunction] = {rule: builder(rule)(terms) for rule in rules}
        slots = 0
        for rule in rules:
            if len(rule.sources) == 1:
                functions = self._single.setdefault(rule.sources[0].operator, [])
                functions.append((rule, matcher(rule, 0)(terms)))
                continue
            self._joins.append(_Several(rule, slots, terms))
            for index, source in enumerate(rule.sources):
                self._several.setdefault(source.operator, []).append((slots + index, matcher(rule, index)(terms)))
            slots += len(rule.sources)
        self._slots = slots
        self._matches: dict[int, list[Match]] = {}
        self._partials: dict[int, list[tuple[int, tuple[int, Values]]]] = {}
        self._made: dict[Match, tuple[int, ...] | None] = {}
        self._alone: dict[Rule, Matcher] = {}

    def alone(self, rule: Rule) -> "Matcher":
        """A matcher of this rule alone, which is remembered: new terms are not looked at for all the others."""
        if rule not in self._alone:
            self._alone[rule] = Matcher([rule], self.terms)
        return self._alone[rule]

    def matches(self, program_live: Sequence[int]) -> list[Match]:
        """All matches in a program, given its live terms. Static terms are left alone: they cost nothing."""
        known, found = self._matches, []
        partials: list[Found] = [[] for _ in range(self._slots)]
        for term in program_live:
            at = known.get(term)
            if at is None:
                at = self._visit(term)
            found += at
            for slot, partial in self._partials[term]:
                partials[slot].append(partial)
        for join in self._joins:
            found += join.matches(partials)
        return found

    def note(self, match: Match, made: tuple[int, ...]) -> None:
        """A match that was found elsewhere, and the terms of the same types that replace its roots."""
        self._made[match] = made

    def apply(self, match: Match) -> tuple[int, ...] | None:
        """The terms that replace the roots; None where they do not fit or nothing would change."""
        if match not in self._made:
            types = self.terms.types
            try:
                made = self._build[match.rule](*match.values)
                fits = made != match.roots and all(types[new] == types[old] for new, old in zip(made, match.roots))
            except ShapeError:
                made, fits = (), False
            self._made[match] = made if fits else None
        return self._made[match]

    def _visit(self, term: int) -> list[Match]:
        """Matches at a term seen for the first time."""
        matches: list[Match] = []
        partials: list[tuple[int, tuple[int, Values]]] = []
        if not self.terms.static[term]:
            name = self.terms.operation[term].name
            for rule, match in self._single.get(name, ()):
                values = match(term)
                if values is not None:
                    matches.append(Match(rule, (term,), values))
            for slot, match in self._several.get(name, ()):
                values = match(term)
                if values is not None:
                    partials.append((slot, (term, values)))
        self._matches[term], self._partials[term] = matches, partials
        return matches


class _Several:
    """Where one rule of several outputs matches, remembered by the roots.

    Of two places that may change roles, one order is made: the other one never led a search to a cheaper program
    (docs/rewriting.md).
    """

    def __init__(self, rule: Rule, first_slot: int, terms: Terms) -> None:
        self.rule, self.first_slot, self.terms = rule, first_slot, terms
        self.join, self.symmetric = Join(rule, terms), symmetric(rule)
        self.variables = [place for place, name in enumerate(bound_names(rule)) if name[0] == "?"]
        self.known: dict[tuple[int, ...], Match | None] = {}

    def matches(self, partials: Sequence[Found]) -> Iterator[Match]:
        founds = partials[self.first_slot : self.first_slot + len(self.rule.sources)]
        for roots, values in self.join.places(founds, self._apart):
            if roots not in self.known:
                # unless a condition fails, or a term that the targets need needs one of the roots: a cycle
                goals, starts = frozenset(roots), [values[place] for place in self.variables]
                fine = self.join.holds(*values) and not any(reaches(self.terms, start, goals) for start in starts)
                self.known[roots] = Match(self.rule, roots, values) if fine else None
            match = self.known[roots]
            if match is not None:
                yield match

    def _apart(self, roots: tuple[int, ...], root: int) -> bool:
        return root not in roots and not (self.symmetric and root < roots[-1])
