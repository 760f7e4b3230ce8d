"""Proofs by equality saturation: rules are applied to classes of equal terms until two terms are in one class.

Applying a rule only adds: the target becomes a member of the source's class (exploring.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphopt.rewrite.egraphs.cycles import Allowed
from graphopt.rewrite.egraphs.eclasses import TermClasses
from graphopt.rewrite.egraphs.exploring import ExplorationLimits, Explorer
from graphopt.rewrite.egraphs.finding import LoopFinder
from graphopt.rewrite.ir.terms import Terms
from graphopt.rewrite.rules.rule import Rule

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

        explorer = Explorer(self.rules, classes, LoopFinder(self.rules, classes, static=True), Allowed())
        within = ExplorationLimits(limits.nodes, limits.iterations, MANY, k_multi=0, matches=MANY, rest=0)
        rounds = explorer.run(within, equal).rounds
        return rounds if equal() else None
