"""Generates rules as TASO does: `graphopt rules generate` writes rule_files/generated*.txt anew.

Programs are enumerated (enumeration.py); equal ones are generalised and verified (generalising.py). Smaller ones come
first, and rules that saturation proves from the kept ones are dropped: renamed, subsumed and composed rules go that
way. Rules with several outputs are found where the parts of one program are two smaller ones; they cannot be derived,
as their targets hold more than one of their sources needs. The result does not depend on the machine.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import Path

import numpy as np

from graphopt.core.utils.marks import count
from graphopt.core.utils.terminal import Bar
from graphopt.rewrite.egraphs.saturation import Prover, SaturationLimits
from graphopt.rewrite.generation.enumeration import WORLDS, Enumerated, World, grow, halves, start
from graphopt.rewrite.generation.generalising import ConcreteRule, case_of, generalised, holds
from graphopt.rewrite.generation.instances import Instance, built, instances
from graphopt.rewrite.ir.terms import Terms, reachable
from graphopt.rewrite.ir.vocabulary import Operation, ShapeError
from graphopt.rewrite.rules.matching import Matcher
from graphopt.rewrite.rules.parsing import parse_rules
from graphopt.rewrite.rules.rule import Rule, canonical, names_in, nodes

LIMITS = SaturationLimits(iterations=3, nodes=600)
OTHERS, OTHER_TRIES = 3, 60
OUTPUT = Path(__file__).parent / "rule_files" / "generated.txt"


@dataclass
class Kept:
    """The rules so far, the case that each comes from, there or back, and counts of the candidates' fates."""

    rules: dict[Rule, ConcreteRule] = field(default_factory=dict)
    prover: Prover = field(default_factory=lambda: Prover(()))
    counts: Counter[str] = field(default_factory=Counter)
    _seen: set[Rule] = field(default_factory=set)

    def keep(self, rule: Rule, case: ConcreteRule) -> None:
        self.rules[rule] = case
        self.prover = Prover(self.rules)

    def new(self, case: ConcreteRule) -> bool:
        """Whether no renaming of it, and none with its outputs exchanged, has been asked for."""
        plain = Rule("", case.sources, case.targets)
        forms = {canonical(plain), canonical(Rule("", plain.sources[::-1], plain.targets[::-1]))}
        fresh = forms.isdisjoint(self._seen)
        self._seen |= forms
        return fresh


def generate(worlds: tuple[World, ...], depth: int, seed: int = 0) -> Kept:
    """Rules from all programs of at most `depth` operations."""
    kept = Kept()
    rng = np.random.default_rng(seed)
    for size in range(1, depth + 1):
        for world in worlds:
            if size <= world.depth:
                _from_world(world, size, kept, rng)
    _without_derived(kept)
    return kept


def _from_world(world: World, size: int, kept: Kept, rng: np.random.Generator) -> None:
    """Rules from programs of exactly `size` operations in a world."""
    known = start(world, np.random.default_rng(1))
    equal = [list(grow(world, known)) for _ in range(size)][-1]
    kept.counts["programs"] += len(known.by_size[-1]) + len(equal)
    kept.counts["equal"] += len(equal)
    cases = sorted(_cases(known.terms, equal, kept), key=lambda ways: (-len(ways[0].shapes), str(ways[0].sources)))
    if size == 2:
        cases += [[case] for case in _two_outputs(known) if kept.new(case)]
    kept.counts["distinct"] += len(cases)
    with Bar(f"{world.name}, {size} operations", max(len(cases), 1)) as bar:
        for ways in cases:
            kept.counts[_consider(ways, kept, rng)] += 1
            bar.step(f"{len(kept.rules)} rules")


def _cases(terms: Terms, equal: list[tuple[int, int]], kept: Kept) -> Iterator[list[ConcreteRule]]:
    """For each pair of equal programs that is no renaming of an earlier one: the rules there and back."""
    for term, earlier in equal:
        ways = [case_of(terms, (term,), (earlier,)), case_of(terms, (earlier,), (term,))]
        found = [case for case in ways if case is not None]
        if found and kept.new(found[0]):
            yield found


def _consider(ways: list[ConcreteRule], kept: Kept, rng: np.random.Generator) -> str:
    """Keeps the rules of an equality unless those kept so far prove it; returns its fate."""
    if proved(ways[0], kept.prover) or applied(ways[0], kept.rules):
        return "derived"
    found = False
    stem = "_".join(dict.fromkeys(node.operator for node in nodes((*ways[0].sources, *ways[0].targets))))
    name = f"{stem}_{len(kept.rules)}"
    for case, suffix in zip(ways, ("", "_back")):
        rule = generalised(case, name + suffix, rng)
        if rule is not None:
            kept.keep(rule, ways[0])
            found = True
    return "kept" if found else "not general"


def proved(case: ConcreteRule, prover: Prover) -> bool:
    """Whether both sides of a case of one output are equal by the prover's rules. They are compared at the shapes of
    the case, and at a few others at which they are equal. Where all sizes are alike, more can be proved than the
    general rule."""
    rule = Rule("case", case.sources, case.targets)
    own = built(rule, case.shapes, {})
    if len(case.sources) > 1 or own is None or not _equal_by(own, prover):
        return False
    rng = np.random.default_rng(0)
    others = (other for other in instances(rule, rng, OTHER_TRIES, granted=True) if holds(rule, other, rng))
    return all(_equal_by(other, prover) for other in islice(others, OTHERS))


def _equal_by(instance: Instance, prover: Prover) -> bool:
    pairs = list(zip(instance.sources, instance.targets))
    return prover.steps(instance.terms, pairs, LIMITS) is not None


def applied(case: ConcreteRule, rules: Iterable[Rule]) -> bool:
    """Whether one application of one rule of several outputs makes a case's targets from its sources."""
    instance = built(Rule("case", case.sources, case.targets), case.shapes, {})
    if len(case.sources) == 1 or instance is None:
        return False
    matcher = Matcher([rule for rule in rules if len(rule.sources) > 1], instance.terms)
    wanted = set(zip(instance.sources, instance.targets))
    for match in matcher.matches(reachable(instance.terms, instance.sources)):
        if set(zip(match.roots, matcher.apply(match) or ())) == wanted:
            return True
    return False


def _without_derived(kept: Kept) -> None:
    """Drops rules that later, more general ones prove; those of the fewest variables first."""
    cases = sorted({id(case): case for case in kept.rules.values()}.values(), key=lambda case: len(case.shapes))
    with Bar("minimise", max(len(cases), 1)) as bar:
        for case in cases:
            rest = {rule: of for rule, of in kept.rules.items() if of is not case}
            if proved(case, Prover(rest)) or applied(case, rest):
                kept.rules = rest
                kept.counts["derived"] += 1
            bar.step(f"{len(kept.rules)} rules")


def _two_outputs(known: Enumerated) -> Iterator[ConcreteRule]:
    """Where the halves of a program of two operations, one a concat, are two smaller programs; general ones first."""
    terms = known.terms
    found = []
    for whole, axis in product(list(known.by_size[-1]), (0, 1)):
        if not any(terms.operation[i].name == "concat" for i in terms.inputs[whole]):
            continue
        try:
            split = terms.add(halves(terms, axis, whole), (whole,))
        except ShapeError:
            continue
        targets = [terms.add(Operation("item", (part,)), (split,)) for part in (0, 1)]
        sources = [known.representative(half) for half in np.split(known.values[whole], 2, axis)]
        if sources[0] is not None and sources[1] is not None and sources[0] != sources[1]:
            found.append(case_of(terms, (sources[0], sources[1]), targets))
    return iter(sorted((case for case in found if case is not None), key=lambda case: -len(case.shapes)))


def text_of(kept: Kept, command: str, apart: bool) -> str:
    """A rule file: of rules whose sources are apart, or of all others."""
    counts, rules = kept.counts, [rule for rule in kept.rules if sources_apart(rule) == apart]
    lines = list(lines_of(rules))
    several = sum(len(rule.sources) > 1 for rule in rules)
    head = [
        f"Written by `{command}`; do not edit.",
        f"{counts['programs']} programs, {counts['equal']} equal to a smaller one, {counts['distinct']} of these pairs "
        "distinct up to renaming;",
        f"{counts['derived']} derived from others, {counts['not general']} without a general rule.",
        f"{len(rules)} rules on {len(lines)} lines, {several} of them of two outputs"
        + (", which share no input: any two such places of a program match." if apart else "."),
    ]
    return "\n".join([*(f"# {line}" for line in head), "", *lines]) + "\n"


def sources_apart(rule: Rule) -> bool:
    """Whether a rule of two outputs has no term in common: it then matches any two places, in large programs too many
    to try them all."""
    terms = [{name for name in names_in((source,)) if name[0] == "?"} for source in rule.sources]
    return len(terms) > 1 and terms[0].isdisjoint(terms[1])


def lines_of(rules: Iterable[Rule]) -> Iterator[str]:
    """A line per rule; one for both where the next is the way back under the same conditions."""
    left = list(rules)
    while left:
        rule = left.pop(0)
        back = Rule(f"{rule.name}_back", (), rule.sources, rule.conditions)
        if left and replace(left[0], sources=()) == back and left[0].sources == rule.targets:
            left.pop(0)
            yield str(rule).replace(" => ", " <=> ")
        else:
            yield str(rule)


def main(arguments: list[str]) -> int:
    from graphopt.core.cli import sentences

    parser = argparse.ArgumentParser(prog="graphopt rules generate", description="Generate and verify rewrite rules.")
    parser.add_argument("--depth", type=count, default=3, help="operations of the largest programs; default: 3")
    parser.add_argument(
        "--output",
        type=Path,
        default=OUTPUT,
        help="where to write; two-output rules without a common input go\n"
        "to a file of its own, `_apart`; default: the packaged files",
    )
    chosen = parser.parse_args(arguments)
    with sentences():
        kept = generate(WORLDS, chosen.depth)
        command = f"graphopt rules generate --depth {chosen.depth}"
        for path, apart in ((chosen.output, False), (chosen.output.with_stem(f"{chosen.output.stem}_apart"), True)):
            path.write_text(text_of(kept, command, apart))
            print(f"{len(parse_rules(path.read_text()))} rules in {path}")
    return 0
