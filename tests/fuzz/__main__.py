"""`python -m tests.fuzz --cases 10000`: damaged inputs of all formats, counted by what became of them."""

import argparse
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .formats import FORMATS
from .judge import BAD, judged
from .runner import Tally, emptied, run, save, table


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m tests.fuzz", description=str(__doc__))
    result.add_argument("--cases", type=int, default=10_000, help="of all formats together; default: 10,000")
    result.add_argument("--seed", type=int, default=0, help="of the first case of each format")
    result.add_argument("--format", action="append", choices=sorted(FORMATS), help="this one only; may be repeated")
    result.add_argument("--failures", type=Path, default=Path("outputs/fuzz.json"), help="where seeds that fail go")
    result.add_argument("--one", nargs=2, metavar=("FORMAT", "SEED"), help="one case, with its traceback")
    return result


def one(name: str, seed: int) -> int:
    """Makes one case, reads it in this process, and shows the input and what became of it."""
    folder = emptied(Path(tempfile.gettempdir()) / "fuzz_one")
    outcome = judged(FORMATS[name], seed, folder, traced=True)
    print(f"{outcome.kind}: {outcome.text}\nthe input is in {folder}")
    return int(outcome.kind in BAD)


def main(arguments: Sequence[str]) -> int:
    from graphopt.core.utils.terminal import Bar

    args = parser().parse_args(arguments)
    if args.one:
        return one(args.one[0], int(args.one[1]))
    names = args.format or list(FORMATS)
    each = args.cases / sum(FORMATS[name].share for name in names)
    cases = {name: math.ceil(each * FORMATS[name].share) for name in names}
    tallies: dict[str, Tally] = {}
    args.failures.parent.mkdir(parents=True, exist_ok=True)
    with suppress(KeyboardInterrupt), Bar("fuzz", sum(cases.values())) as bar:  # Ctrl-C: the table of what was done
        for name in names:
            tally, start = tallies.setdefault(name, Tally()), time.perf_counter()
            for seed, outcome in run(name, range(args.seed, args.seed + cases[name])):
                tally.add(seed, outcome)
                tally.seconds = time.perf_counter() - start
                bar.step(f"{name}: {len(tally.bad)} bad of {tally.counts.total()}")
            save(args.failures, tallies)
    print("\n".join(table(tallies)))
    for name, tally in tallies.items():
        for (kind, place), seeds in _alike(tally).items():
            print(f"{name} {kind}, {len(seeds)} seeds such as {seeds[0]}: {place}")
    return int(any(tally.bad for tally in tallies.values()))


def _alike(tally: Tally) -> dict[tuple[str, str], list[int]]:
    """Failures at one place of the code -> their seeds, most frequent first."""
    found: dict[tuple[str, str], list[int]] = {}
    places = Counter((outcome.kind, outcome.text.rpartition(" at ")[2]) for outcome in tally.bad.values())
    for (kind, place), _ in places.most_common():
        alike = {s: o for s, o in tally.bad.items() if (o.kind, o.text.rpartition(" at ")[2]) == (kind, place)}
        found[kind, next(iter(alike.values())).text] = list(alike)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
