"""Equality saturation over classes of terms, with rules of several outputs: Tensat's exploration (MLSys 2021, 4-5).

A round finds all matches, then adds all their targets, then restores congruence. Rules of one output are matched again
only near classes that changed. Rules of several outputs multiply programs, so only the first `k_multi` rounds have them
(there is one limit for all of them, as in Tensat).

Cycles: a rule may put what needs a class into that class. `vanilla` looks through the classes before every application;
`efficient` knows what was below each class when the round began, which is conservative, and takes the newest node out
of each cycle that a round made (section 5.2). `allowed` leaves them to an extraction that can do without.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from graphopt.rewrite.compiling import Values, bound_names, builder, equalities, function_of, names_of, test_of
from graphopt.rewrite.cycles import Below, CycleFilter
from graphopt.rewrite.eclasses import TermClasses
from graphopt.rewrite.ematching import Found, depth, ematcher
from graphopt.rewrite.expressions import atom
from graphopt.rewrite.rules import Rule
from graphopt.rewrite.vocabulary import ShapeError

Applied = tuple[int, tuple[int, ...], Values]  # number of the rule, nodes of its sources, values of its names


@dataclass(frozen=True, slots=True)
class ExplorationLimits:
    """When exploration ends. nodes: no more are added beyond. k_multi: rounds that have rules of several outputs."""

    nodes: int
    iterations: int
    seconds: float
    k_multi: int


@dataclass(frozen=True, slots=True)
class Explored:
    """How exploration ended: `saturated`, `nodes`, `iterations` or `seconds`; after how many rounds."""

    why: str
    rounds: int


class Explorer:
    """Applies rules to classes."""

    def __init__(self, rules: Sequence[Rule], classes: TermClasses, cycles: CycleFilter) -> None:
        self.classes, self.cycles, self.rules = classes, cycles, rules
        view: Any = classes  # it has what conditions and builders use of Terms: types, static, add
        self._singles, self._joins = [], []
        self._builds, self._variables = [], []
        for number, rule in enumerate(rules):
            self._builds.append(builder(rule)(view))
            self._variables.append([i for i, name in enumerate(bound_names(rule)) if name[0] == "?"])
            if len(rule.sources) == 1:
                source = rule.sources[0]
                self._singles.append((number, source.operator, depth(source), ematcher(rule, 0)(view)))
            else:
                self._joins.append(_Join(number, rule, view))

    def run(self, limits: ExplorationLimits) -> Explored:
        end = time.perf_counter() + limits.seconds
        near: list[set[int]] | None = None  # nothing known: everything may match
        for round_ in range(limits.iterations):
            found = self._found(near, round_ < limits.k_multi)
            why = self._apply(found, limits.nodes, end)
            self.classes.rebuild()
            self.cycles.clean(self.classes)
            if why:
                return Explored(why, round_ + 1)
            if not self.classes.changed and round_ + 1 >= limits.k_multi:
                return Explored("saturated", round_ + 1)
            near = self._near_changes()
        return Explored("iterations", limits.iterations)

    def _found(self, near: list[set[int]] | None, several: bool) -> list[Applied]:
        """Matches of all rules, those of one output first."""
        classes = self.classes
        index, static = classes.index(), classes.static
        roots = {name: [n for members in of.values() for n in members if not static[n]] for name, of in index.items()}
        found: list[Applied] = []
        for number, operator, deep, match in self._singles:
            if near is None:
                at = roots.get(operator, [])
            else:
                at = [n for n in roots.get(operator, []) if n in near[deep - 1]]
            here: Found = []
            match(at, index, classes.children, here)
            found += [(number, (root,), values) for root, values in here]
        for join in self._joins if several else ():
            found += join.matches(roots, index, classes)
        return found

    def _near_changes(self) -> list[set[int]]:
        """[d] nodes with a changed class at most d below their own members."""
        classes, deepest = self.classes, max((deep for _, _, deep, _ in self._singles), default=1)
        at = {classes.find(c) for c in classes.changed}
        classes.changed.clear()
        reached = set(at)
        near = []
        for _ in range(deepest):
            near.append({n for c in reached for n in classes.members[c]})
            at = {classes.find(user) for c in at for user in classes.users[c] if user in classes.children} - reached
            reached = reached | at
        return near

    def _apply(self, found: Sequence[Applied], most_nodes: int, end: float) -> str:
        """Adds targets and merges; which limit was met, or an empty string."""
        classes, types = self.classes, self.classes.types
        below = self.cycles.begin(classes)
        for number, roots, values in found:
            if len(classes) >= most_nodes:
                return "nodes"
            if time.perf_counter() > end:
                return "seconds"
            if len(roots) > 1 and self._cyclic(below, number, roots, values):
                continue
            classes.rule = self.rules[number].name
            try:
                made = self._builds[number](*values)
            except ShapeError:
                continue
            if all(types[new] == types[old] for new, old in zip(made, roots)):
                for new, old in zip(made, roots):
                    classes.merge(old, new)
        return ""

    def _cyclic(self, below: Below, number: int, roots: tuple[int, ...], values: Values) -> bool:
        """Whether something that the targets need, needs a root."""
        find = self.classes.find
        needs = [find(values[place]) for place in self._variables[number]]
        return below.reaches(needs, [find(root) for root in roots])


class _Join:
    """Puts matches of the sources of one rule together: nodes of different classes that agree on what they share.

    Both orders of a symmetric rule are made: they concatenate in different orders, and one alone may match a later
    concatenation.
    """

    def __init__(self, number: int, rule: Rule, view: Any) -> None:
        self.number, self.rule = number, rule
        self.sources = [(source.operator, ematcher(rule, i)(view)) for i, source in enumerate(rule.sources)]
        self.steps = []
        names = list(names_of(rule.sources[0]))
        for source in rule.sources[1:]:
            added = names_of(source)
            keys = equalities(rule, set(names), set(added))
            shared = [name for name in added if name in names]
            left = function_of(names, [*map(atom, shared), *(one for one, _ in keys)], view)
            right = function_of(added, [*map(atom, shared), *(other for _, other in keys)], view)
            new = [place for place, name in enumerate(added) if name not in names]
            names += [added[place] for place in new]
            self.steps.append((left, right, new))
        self.holds = test_of(names, rule.conditions, view)

    def matches(self, roots: dict[str, list[int]], index: Any, classes: TermClasses) -> Iterator[Applied]:
        founds: list[Found] = []
        for operator, match in self.sources:
            founds.append([])
            match(roots.get(operator, []), index, classes.children, founds[-1])
        rows: list[tuple[tuple[int, ...], Values]] = [((root,), values) for root, values in founds[0]]
        for found, step in zip(founds[1:], self.steps):
            rows = list(self._extended(rows, found, classes, *step))
        for nodes, values in rows:
            if self.holds(*values):
                yield self.number, nodes, values

    def _extended(self, rows: Sequence[tuple[tuple[int, ...], Values]], found: Found, classes: TermClasses,
                  left: Any, right: Any, new: Sequence[int]) -> Iterator[tuple[tuple[int, ...], Values]]:  # fmt: skip
        by_key: dict[Values, Found] = {}
        for root, values in found:
            by_key.setdefault(right(*values), []).append((root, values))
        for roots, values in rows:
            taken = {classes.find(root) for root in roots}
            for root, more in by_key.get(left(*values), ()):
                if classes.find(root) not in taken:
                    yield (*roots, root), (*values, *[more[place] for place in new])
