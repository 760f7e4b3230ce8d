"""Sweeps: a rule applied at all its places at once.

One rewrite of many changes a program's run time by less than a timing's noise. The same rewrite everywhere does not,
and what an additive model says of it may be wrong everywhere alike: of all convolutions whose groups are merged, say.

A wave takes the places of a rule in the program as it is, the last ones first, so that earlier places stay what they
are; what is no longer there when its turn comes is left out. A sweep is one wave or several.
"""

from collections.abc import Iterator, Sequence

from graphopt.rewrite.ir.terms import Outputs, reachable, runs, substitute
from graphopt.rewrite.rules.matching import Match
from graphopt.rewrite.rules.rule import Rule
from graphopt.rewrite.rules.steps import Neighbours


def sweeps(neighbours: Neighbours, outputs: Outputs, waves: int, most_ops: int) -> list[Match]:
    """The sweeps of every rule, as rewrites of the program's outputs: after one wave, two, ... up to `waves`, while
    that makes new programs of fewer than `most_ops` ops. Sweeps of one place are the rewrite itself, and left out."""
    found = list[Match]()
    if not waves:
        return found
    everywhere = neighbours.matches(reachable(neighbours.terms, outputs))
    for rule in dict.fromkeys(match.rule for match in everywhere):
        found += _of(neighbours, rule, outputs, waves, most_ops)
    return found


def _of(neighbours: Neighbours, rule: Rule, outputs: Outputs, waves: int, most_ops: int) -> Iterator[Match]:
    seen, now, places = {neighbours.digest(outputs)}, outputs, 0
    for _ in range(waves):
        now, changed = wave(neighbours, rule, now)
        places += changed
        digest = neighbours.digest(now)
        if digest in seen or _ops(neighbours, now) >= most_ops:
            return
        seen.add(digest)
        if places > 1:
            pairs = [(old, new) for old, new in dict.fromkeys(zip(outputs, now)) if old != new]
            yield neighbours.found(rule.name, tuple(old for old, _ in pairs), tuple(new for _, new in pairs))


def wave(neighbours: Neighbours, rule: Rule, outputs: Outputs) -> tuple[Outputs, int]:
    """The program with the rule applied at all its places, and at how many."""
    live, changed = reachable(neighbours.terms, outputs), 0
    here = set(live)
    for match in sorted(neighbours.matches(live, rule), key=lambda match: match.roots, reverse=True):
        made = neighbours.made(match) if here.issuperset(match.roots) else None
        if made is not None:
            outputs = substitute(neighbours.terms, outputs, live, dict(zip(match.roots, made)))
            live, changed = reachable(neighbours.terms, outputs), changed + 1
            here = set(live)
    return outputs, changed


def _ops(neighbours: Neighbours, outputs: Sequence[int]) -> int:
    return sum(runs(neighbours.terms, term) for term in reachable(neighbours.terms, outputs))
