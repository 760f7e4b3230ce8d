"""Equality saturation over classes of terms, with rules of several outputs: Tensat's exploration (MLSys 2021, 4-5).

A round finds all matches, then adds all their targets, then restores congruence. Rules of several outputs multiply
programs, so only the first `k_multi` rounds have them (one limit for all of them, as in Tensat).

Sums of many terms have exponentially many orders. A rule of one output that matches too often therefore rests for some
rounds, longer each time, as egg's back-off scheduler has it (Willsey et al., POPL 2021, section 5).

Cycles (cycles.py): a rule of several outputs may put what needs a class into that class, which is asked before each of
their applications.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from graphopt.rewrite.egraphs.cycles import Below, CycleFilter
from graphopt.rewrite.egraphs.eclasses import TermClasses
from graphopt.rewrite.ir.vocabulary import ShapeError
from graphopt.rewrite.rules.compiling import bound_names, builder
from graphopt.rewrite.rules.joining import Place
from graphopt.rewrite.rules.pattern_writing import Values
from graphopt.rewrite.rules.rule import Rule
from graphopt.utils.ranges import Count, NotNegative, Positive, Whole


@dataclass(frozen=True, slots=True)
class ExplorationLimits:
    """When exploration ends. nodes: no more are added beyond. k_multi: rounds that have rules of several outputs.

    matches: of one rule in one round, per node of the given program; a rule with more rests for `rest` rounds. Both
    double each time.
    """

    nodes: Count
    iterations: Whole
    seconds: NotNegative
    k_multi: Whole
    matches: Positive
    rest: Whole


@dataclass(frozen=True, slots=True)
class Explored:
    """How exploration ended: `reached` (what was looked for), `saturated`, `resting` (saturated but for rules that
    rest), or the limit `nodes`, `iterations` or `seconds`; after how many rounds."""

    why: str
    rounds: int


class Finder(Protocol):
    """Finds where rules match."""

    def found(self, rules: Sequence[int]) -> dict[int, list[Place]]:
        """Matches of these rules, by their numbers: of rules of one output at least those that were not returned
        before, of others all."""

    def forget(self, rule: int) -> None:
        """What was returned last for a rule of one output was not used."""


class Explorer:
    """Applies rules to classes."""

    def __init__(self, rules: Sequence[Rule], classes: TermClasses, finder: Finder, cycles: CycleFilter) -> None:
        self.rules, self.classes, self.finder, self.cycles = rules, classes, finder, cycles
        view: Any = classes  # it has what builders use of Terms: types, static, add
        self._builds = [builder(rule)(view) for rule in rules]
        self._variables = [[i for i, name in enumerate(bound_names(rule)) if name[0] == "?"] for rule in rules]
        self._rests = dict.fromkeys(range(len(rules)), 0)  # how often each rule has rested
        self._back = dict.fromkeys(range(len(rules)), 0)  # the round in which it works again

    def run(self, limits: ExplorationLimits, until: Callable[[], bool] = lambda: False) -> Explored:
        """until: whether what is looked for is there, asked before every round."""
        end = time.perf_counter() + limits.seconds
        most = max(1, round(limits.matches * len(self.classes)))
        for round_ in range(limits.iterations):
            if until():
                return Explored("reached", round_)
            found = self._found(round_, limits, most)
            self.classes.changed.clear()
            why = self._apply(found, limits.nodes, end)
            self.classes.rebuild()
            self.cycles.clean(self.classes)
            if why:
                return Explored(why, round_ + 1)
            if not self.classes.changed and round_ + 1 >= limits.k_multi:
                resting = any(back > round_ + 1 for back in self._back.values())
                return Explored("resting" if resting else "saturated", round_ + 1)
        return Explored("iterations", limits.iterations)

    def apply_rule(self, number: int, nodes: int, seconds: float) -> Explored:
        """One rule wherever it matches, once. It ends `saturated` where that makes nothing new, at a limit, or as
        `iterations`."""
        if len(self.rules[number].sources) == 1:
            self.finder.forget(number)
        found = self.finder.found([number])
        self.classes.changed.clear()
        why = self._apply(found, nodes, time.perf_counter() + seconds)
        self.classes.rebuild()
        self.cycles.clean(self.classes)
        return Explored(why or ("iterations" if self.classes.changed else "saturated"), 1)

    def _found(self, round_: int, limits: ExplorationLimits, most: int) -> dict[int, list[Place]]:
        """Matches of the rules of this round, those of one output first; too many make a rule rest."""
        single = [n for n, rule in enumerate(self.rules) if len(rule.sources) == 1 and self._back[n] <= round_]
        several = [n for n, rule in enumerate(self.rules) if len(rule.sources) > 1 and round_ < limits.k_multi]
        found = self.finder.found([*single, *several])
        for n in single:
            if len(found[n]) > most << self._rests[n]:
                self._back[n] = round_ + 1 + (limits.rest << self._rests[n])
                self._rests[n] += 1
                self.finder.forget(n)
                del found[n]
        return found

    def _apply(self, found: Mapping[int, Sequence[Place]], most_nodes: int, end: float) -> str:
        """Adds targets and merges; which limit was met, or an empty string."""
        several = any(len(self.rules[number].sources) > 1 for number in found)
        below = self.cycles.begin(self.classes) if several else None
        for number, places in found.items():
            self.classes.rule = self.rules[number].name
            for roots, values in places:
                if len(self.classes) >= most_nodes:
                    return "nodes"
                if time.perf_counter() > end:
                    return "seconds"
                if below is None or len(roots) == 1 or not self._cyclic(below, number, roots, values):
                    self._apply_at(number, roots, values)
        return ""

    def _apply_at(self, number: int, roots: tuple[int, ...], values: Values) -> None:
        types = self.classes.types
        try:
            made = self._builds[number](*values)
        except ShapeError:
            return
        if all(types[new] == types[old] for new, old in zip(made, roots)):
            for new, old in zip(made, roots):
                self.classes.merge(old, new)

    def _cyclic(self, below: Below, number: int, roots: tuple[int, ...], values: Values) -> bool:
        """Whether something that the targets need, needs a root."""
        find = self.classes.find
        needs = [find(values[place]) for place in self._variables[number]]
        return below.reaches(needs, [find(root) for root in roots])
