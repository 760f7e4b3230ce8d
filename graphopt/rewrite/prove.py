"""Proves the substitutions of other systems from our rules: `graphopt rules prove DIR`.

DIR holds TASO's protobuf file, Tensat's text files, or both. Every rule is verified by itself, to find for which shapes
it is meant, and is then taken at several of them; there our rules saturate an e-graph of both its sides until they are
equal, output by output.
"""

import argparse
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from graphopt.rewrite.egraphs.saturation import Prover, SaturationLimits
from graphopt.rewrite.generation.foreign import Substitutions, read_folder, readings
from graphopt.rewrite.generation.instances import Instance, instances
from graphopt.rewrite.rules.parsing import load_rules
from graphopt.rewrite.rules.rule import Rule
from graphopt.rewrite.verify import Rejected, verify
from graphopt.utils.progress import Bar

SHAPES, TRIES, CASES = 3, 2000, 20
NAMED = 20  # unknown operators


def proof(rule: Rule, prover: Prover, limits: SaturationLimits, seed: int = 0) -> int | None:
    """After how many rounds of saturation both sides are equal at all shapes; None where they are not, or where no
    shapes fit the rule. Of many shapes those with the fewest sides of 1 are taken, which make most differ."""
    drawn = list(islice(instances(rule, np.random.default_rng(seed), TRIES, granted=True), CASES))
    rounds: list[int | None] = []
    for case in sorted(drawn, key=Instance.ones)[:SHAPES]:
        pairs = list(zip(case.sources, case.targets))
        rounds.append(None if case.misfit else prover.steps(case.terms, pairs, limits))
    known = [r for r in rounds if r is not None]
    return max(known) if rounds and len(known) == len(rounds) else None


def true_reading(rule: Rule) -> tuple[str, Rule]:
    """The widest reading of a rule that verification does not reject. Raises Rejected, with a counterexample if any
    reading has one."""
    refused: list[Rejected] = []
    for name, reading in readings(rule):
        try:
            verify(reading, cases=CASES, granted=True)
        except Rejected as error:
            refused.append(error)
            continue
        return name, reading
    raise next((error for error in refused if error.instance is not None), refused[0])


@dataclass
class _Report:
    """What became of the rules of one file: proved ones by rounds and by reading, and a line about each other one."""

    proved: Counter[int] = field(default_factory=Counter)
    meant: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)

    def judge(self, rule: Rule, prover: Prover) -> None:
        try:
            name, reading = true_reading(rule)
        except Rejected as error:
            verdict = "not true" if error.instance is not None else "nothing can be said"
            self.lines.append(f"  {verdict}: {rule}\n    {error}")
            return
        rounds = proof(reading, prover, SaturationLimits())
        if rounds is None:
            self.lines.append(f"  not proved: {reading}")
        else:
            self.proved[rounds] += 1
            self.meant[name] += 1


def report(name: str, foreign: Substitutions, prover: Prover) -> tuple[list[str], bool]:
    """Lines about the rules of one file, and whether all that could be read are proved."""
    found = _Report()
    with Bar(name, len(foreign.rules)) as bar:
        for rule in foreign.rules:
            found.judge(rule, prover)
            bar.step(rule.name)
    counted = ", ".join(f"{count} for {reading}" for reading, count in found.meant.most_common())
    in_rounds = ", ".join(f"{count} in {rounds}" for rounds, count in sorted(found.proved.items()))
    head = [f"{name}: {found.proved.total()} of {len(foreign.rules)} proved"]
    head += [f"  read: {counted}", f"  rounds: {in_rounds}"] if found.proved else []
    if foreign.skipped:
        unknown = ", ".join(f"{operator} ({count})" for operator, count in foreign.skipped.most_common(NAMED))
        head.append(f"  skipped, as their operators are unknown here: {foreign.skipped.total()}: {unknown}")
    return head + found.lines, not found.lines


def main(arguments: list[str]) -> int:
    from graphopt.cli import sentences

    parser = argparse.ArgumentParser(prog="graphopt rules prove", description=str(__doc__).split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the substitutions are")
    parser.add_argument("--rules", nargs="*", default=["generated", "exchanges"], help="rule files to prove from")
    chosen = parser.parse_args(arguments)
    with sentences():
        prover = Prover(load_rules(*chosen.rules))
        well = True
        for name, foreign in read_folder(chosen.folder).items():
            lines, good = report(name, foreign, prover)
            print("\n".join(lines))
            well &= good
    return 0 if well else 1
