"""Equality saturation over classes of terms, with rules of several outputs: Tensat's exploration (MLSys 2021, 4-5).

A round finds all matches, then adds all their targets, then restores congruence. Rules of several outputs multiply
programs, so only the first `k_multi` rounds have them (one limit for all of them, as in Tensat).

Cycles (cycles.py): a rule of several outputs may put what needs a class into that class, which is asked before each of
their applications.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from graphopt.rewrite.compiling import Values, bound_names, builder
from graphopt.rewrite.cycles import Below, CycleFilter
from graphopt.rewrite.eclasses import TermClasses
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


class Finder(Protocol):
    """Finds where rules match."""

    def found(self, several: bool) -> list[Applied]:
        """Matches of all rules, those of one output first; at least those that were not there at the last call, and
        with `several` all those of rules of several outputs."""


class Explorer:
    """Applies rules to classes."""

    def __init__(self, rules: Sequence[Rule], classes: TermClasses, finder: Finder, cycles: CycleFilter) -> None:
        self.rules, self.classes, self.finder, self.cycles = rules, classes, finder, cycles
        view: Any = classes  # it has what builders use of Terms: types, static, add
        self._builds = [builder(rule)(view) for rule in rules]
        self._variables = [[i for i, name in enumerate(bound_names(rule)) if name[0] == "?"] for rule in rules]

    def run(self, limits: ExplorationLimits) -> Explored:
        end = time.perf_counter() + limits.seconds
        for round_ in range(limits.iterations):
            found = self.finder.found(round_ < limits.k_multi)
            self.classes.changed.clear()
            why = self._apply(found, limits.nodes, end)
            self.classes.rebuild()
            self.cycles.clean(self.classes)
            if why:
                return Explored(why, round_ + 1)
            if not self.classes.changed and round_ + 1 >= limits.k_multi:
                return Explored("saturated", round_ + 1)
        return Explored("iterations", limits.iterations)

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
