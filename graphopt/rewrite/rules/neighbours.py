"""The programs that one rewrite away lie: every rule at every place."""

from graphopt.rewrite.ir.digests import Digests
from graphopt.rewrite.ir.terms import Outputs, Program, Terms, reachable, substitute
from graphopt.rewrite.rules.matching import Match, Matcher
from graphopt.rewrite.rules.rule import Rule, RuleSet
from graphopt.rewrite.rules.steps import Neighbourhood, Price


class Neighbours:
    """Of programs that share one store of terms. Remembers where rules match."""

    def __init__(self, rules: RuleSet, terms: Terms) -> None:
        self.terms, self._matcher, self._digests = terms, Matcher(rules, terms), Digests(terms)

    def around(self, outputs: Outputs, price: Price) -> Neighbourhood:
        """The programs one rewrite away, priced term by term, and not made."""
        return Neighbourhood(self._matcher, self._digests, price, outputs)

    def found(self, name: str, root: int, made: int) -> Match:
        """A rewrite that no rule describes: `made`, of the same type, for `root`."""
        match = Match(Rule(name, (), ()), (root,), ())
        self._matcher.note(match, (made,))
        return match

    def digest(self, outputs: Outputs) -> int:
        """Equal for equal programs."""
        return self._digests.program(outputs)

    def apply(self, outputs: Outputs, match: Match) -> Outputs:
        """The outputs of the program that a match in the program leads to."""
        made = self._matcher.apply(match)
        if made is None:
            raise ValueError(f"rule {match.rule.name} makes nothing of {match.binding}")
        return substitute(self.terms, outputs, reachable(self.terms, outputs), dict(zip(match.roots, made)))


def replayed(program: Program, outputs: Outputs) -> Program:
    """The program with other outputs; refuses those of another type."""
    before, after = ([program.terms.types[o] for o in side] for side in (program.outputs, outputs))
    if before != after:
        raise ValueError(f"rewriting changed the outputs' types from {before} to {after}")
    return program.with_outputs(outputs)
