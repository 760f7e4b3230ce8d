"""Verifies rules: both sides computed with exact integers, on many shapes, parameters and random draws.

`graphopt rules verify [FILE]` checks a file of rules, all packaged ones without it.
"""

import argparse
from pathlib import Path

import numpy as np

from graphopt.core.errors import UserError
from graphopt.core.utils.terminal import Bar
from graphopt.rewrite.generation.instances import Instance, instances
from graphopt.rewrite.ir import reference
from graphopt.rewrite.ir.terms import reachable
from graphopt.rewrite.rules.parsing import load_rules, parse_rules
from graphopt.rewrite.rules.rule import Rule, RuleError

CASES, DRAWS, TRIES, LEAST_CASES = 60, 2, 4000, 4


class Rejected(RuleError):
    """A rule that is wrong, or of which nothing can be said; the message shows where. instance: the case if there is
    one."""

    def __init__(self, message: str, instance: Instance | None = None) -> None:
        super().__init__(f"{message}, for {instance}" if instance else message)
        self.instance = instance


def verify(rule: Rule, *, seed: int = 0, cases: int = CASES, draws: int = DRAWS) -> int:
    """Compares both sides in up to `cases` cases, `draws` times each; in how many. Raises Rejected."""
    rng = np.random.default_rng(seed)
    checked = 0
    for instance in instances(rule, rng, TRIES):
        if instance.misfit:
            raise Rejected(f"{rule.name}: the targets do not fit, {instance.misfit}", instance)
        for _ in range(draws):
            compare(rule, instance, rng)
        checked += 1
        if checked >= cases:
            break
    if checked < min(cases, LEAST_CASES):
        raise Rejected(f"{rule.name}: {checked} shapes found that fit it, too few to verify; loosen its conditions")
    return checked


def compare(rule: Rule, instance: Instance, rng: np.random.Generator) -> None:
    """Computes both sides of a case on random integers. Raises Rejected where they differ."""
    terms = instance.terms
    live = reachable(terms, (*instance.sources, *instance.targets))
    leaves = {t: rng.integers(-4, 5, terms.shape(t)) for t in live if terms.operation[t].name in ("input", "weight")}
    before, after = (reference.run(terms, side, leaves) for side in (instance.sources, instance.targets))
    for place, (left, right) in enumerate(zip(before, after)):
        if not np.array_equal(left, right):
            wrong = int((left != right).sum())
            raise Rejected(f"{rule.name}: output {place} differs in {wrong} of {left.size} elements", instance)


def main(arguments: list[str]) -> int:
    from graphopt.core.cli import sentences

    parser = argparse.ArgumentParser(prog="graphopt rules verify", description=str(__doc__).split("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, help="rules, one a line; default: all packaged ones")
    file = parser.parse_args(arguments).file
    with sentences():
        try:
            rules = parse_rules(file.read_text()) if file else load_rules()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {file} as text: {error}") from None
    complaints = []
    with Bar("verify", len(rules)) as bar:
        for rule in rules:
            try:
                note = f"{rule.name}: {verify(rule)} cases"
            except Rejected as error:
                note = str(error)
                complaints.append(note)
            bar.step(note)
    print("\n".join([*complaints, f"{len(rules) - len(complaints)} of {len(rules)} rules verified"]))
    return 1 if complaints else 0
