"""Equality saturation over classes of terms, with rules of several outputs: Tensat's exploration (MLSys 2021, 4-5).

A round finds all matches, then adds all their targets, then restores congruence. Rules of several outputs multiply
programs, so only the first `k_multi` rounds have them (one limit for all of them, as in Tensat).

Sums of many terms have exponentially many orders. A rule of one output that matches too often therefore rests for some
rounds, longer each time, as egg's back-off scheduler has it (Willsey et al., POPL 2021, section 5).

A rule of several outputs may put a term that needs a class into that class. That is a cycle, so each of their
applications is checked before.

A proof applies rules until two terms are in one class.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphopt.core.utils.marks import Count, NotNegative, Positive, Whole
from graphopt.rewrite.egraphs.eclasses import Descendants, TermClasses, forbid_cycles
from graphopt.rewrite.egraphs.ematching import LoopFinder
from graphopt.rewrite.ir.terms import Terms
from graphopt.rewrite.ir.vocabulary import ShapeError
from graphopt.rewrite.rules.compiling import bound_names, builder
from graphopt.rewrite.rules.matching import Place
from graphopt.rewrite.rules.rule import Rule


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
    """How exploration ended: `reached` (the goal), `saturated`, `resting` (saturated but for rules that rest), or the
    limit `nodes`, `iterations` or `seconds`; after how many rounds."""

    why: str
    rounds: int


class Explorer:
    """Applies rules to classes.

    static: whether rules match at terms that depend on weights alone, too. acyclic: whether cycles that a round has
    made are cut at its end.
    """

    def __init__(self, rules: Sequence[Rule], classes: TermClasses, *, static: bool = False,
                 acyclic: bool = True) -> None:  # fmt: skip
        self.rules, self.classes, self.acyclic = rules, classes, acyclic
        self.finder = LoopFinder(rules, classes, static=static)
        view: Any = classes  # it has the parts of Terms that builders use: types, static, add
        self._builds = [builder(rule)(view) for rule in rules]
        self._variables = [[i for i, name in enumerate(bound_names(rule)) if name[0] == "?"] for rule in rules]
        self._rests = dict.fromkeys(range(len(rules)), 0)  # how often each rule has rested
        self._back = dict.fromkeys(range(len(rules)), 0)  # the round in which it works again

    def run(self, limits: ExplorationLimits, until: Callable[[], bool] = lambda: False) -> Explored:
        """until: whether the goal is reached, asked before every round."""
        end = time.perf_counter() + limits.seconds
        most = max(1, round(limits.matches * len(self.classes)))
        for round_ in range(limits.iterations):
            if until():
                return Explored("reached", round_)
            found = self._found(round_, limits, most)
            self.classes.changed.clear()
            why = self._apply(found, limits.nodes, end)
            self._restore()
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
        self._restore()
        return Explored(why or ("iterations" if self.classes.changed else "saturated"), 1)

    def _restore(self) -> None:
        """Congruence, and classes without cycles if these are cut."""
        self.classes.rebuild()
        if self.acyclic:
            forbid_cycles(self.classes)

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
        several, find = any(len(self.rules[number].sources) > 1 for number in found), self.classes.find
        below, types = Descendants(self.classes) if several else None, self.classes.types
        for number, places in found.items():
            self.classes.rule = self.rules[number].name
            for roots, values in places:
                if len(self.classes) >= most_nodes:
                    return "nodes"
                if time.perf_counter() > end:
                    return "seconds"
                if below is not None and len(roots) > 1:
                    needs = [find(values[place]) for place in self._variables[number]]
                    if below.reach(needs, [find(root) for root in roots]):
                        continue  # something that the targets need, needs a root
                try:
                    made = self._builds[number](*values)
                except ShapeError:
                    continue
                if all(types[new] == types[old] for new, old in zip(made, roots)):
                    for new, old in zip(made, roots):
                        self.classes.merge(old, new)
        return ""


MANY = 10**9


@dataclass(frozen=True)
class SaturationLimits:
    """When saturation gives up."""

    iterations: int = 8
    nodes: int = 5_000


class Prover:
    """Proves with the rules of one output; those of several prove nothing that others do not."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = [rule for rule in rules if len(rule.sources) == 1]

    def steps(self, terms: Terms, pairs: Sequence[tuple[int, int]], limits: SaturationLimits) -> int | None:
        """After how many rounds of all rules all pairs of terms are equal; None where they are not within the limits.
        New terms are left in the store."""
        classes = TermClasses(terms)
        classes.add_program(term for pair in pairs for term in pair)

        def equal() -> bool:
            return all(classes.find(a) == classes.find(b) for a, b in pairs)

        explorer = Explorer(self.rules, classes, static=True, acyclic=False)
        within = ExplorationLimits(limits.nodes, limits.iterations, MANY, k_multi=0, matches=MANY, rest=0)
        rounds = explorer.run(within, equal).rounds
        return rounds if equal() else None
