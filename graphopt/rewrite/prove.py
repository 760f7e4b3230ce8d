"""Proves the substitutions of other systems from our rules: `python -m graphopt.rewrite.prove DIR`.

DIR holds TASO's protobuf file, Tensat's text files, or both. Every rule is verified by itself, to find for which shapes
it is meant, and is then taken at several of them; there our rules saturate an e-graph of both its sides until they are
equal, output by output.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from graphopt.progress import Bar
from graphopt.rewrite.foreign import read_folder, readings
from graphopt.rewrite.instances import instances
from graphopt.rewrite.rules import Rule, load_rules
from graphopt.rewrite.saturation import Limits, Prover
from graphopt.rewrite.verify import Rejected, verify

SHAPES, TRIES, CASES = 3, 2000, 20


def proof(rule: Rule, prover: Prover, limits: Limits, seed: int = 0) -> int | None:
    """After how many rounds of saturation both sides are equal at all shapes; None where they are not, or where no
    shapes fit the rule."""
    rng = np.random.default_rng(seed)
    rounds: list[int | None] = []
    for case in islice(instances(rule, rng, TRIES, granted=True), SHAPES):
        rounds.append(prover.steps(case.terms, list(zip(case.sources, case.targets)), limits))
    known = [r for r in rounds if r is not None]
    return max(known) if rounds and len(known) == len(rounds) else None


def true_reading(rule: Rule) -> tuple[str, Rule] | None:
    """The widest reading of a rule that verification does not reject."""
    for name, reading in readings(rule):
        try:
            verify(reading, cases=CASES, granted=True)
        except Rejected:
            continue
        return name, reading
    return None


def report(name: str, foreign: Sequence[Rule], prover: Prover) -> tuple[list[str], bool]:
    """Lines about the rules of one file, and whether all are proved."""
    lines, proved, meant = [], Counter[int](), Counter[str]()
    with Bar(name, len(foreign)) as bar:
        for rule in foreign:
            reading = true_reading(rule)
            rounds = None if reading is None else proof(reading[1], prover, Limits())
            if reading is None:
                lines.append(f"  not true: {rule}")
            elif rounds is None:
                lines.append(f"  not proved: {reading[1]}")
            else:
                proved[rounds] += 1
                meant[reading[0]] += 1
            bar.step(rule.name)
    counted = ", ".join(f"{count} for {reading}" for reading, count in meant.most_common())
    in_rounds = ", ".join(f"{count} in {rounds}" for rounds, count in sorted(proved.items()))
    head = [f"{name}: {proved.total()} of {len(foreign)} proved", f"  read: {counted}", f"  rounds: {in_rounds}"]
    return head + lines, not lines


def main(arguments: list[str]) -> int:
    from graphopt.cli import sentences

    parser = argparse.ArgumentParser(prog="python -m graphopt.rewrite.prove", description=str(__doc__).split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the substitutions are")
    parser.add_argument("--rules", nargs="*", default=["generated"], help="rule files to prove from")
    chosen = parser.parse_args(arguments)
    with sentences():
        prover = Prover(load_rules(*chosen.rules))
        well = True
        for name, foreign in read_folder(chosen.folder).items():
            lines, good = report(name, foreign, prover)
            print("\n".join(lines))
            well &= good
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
