"""How far graphopt is from the floor of the machine: what each kind of work takes now, and what it should take.

`python benchmarks/floors.py [--quick] [FILE ...]` runs the benchmarks named below, or some of them, and prints a table:
the work, the lowest and the highest of its figures, their noise, what is wanted, and whether all of them are there. The
first line names the machine. A figure is the median of its repetitions, the noise half of their range over it.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from graphopt.hardware.measure.environment import processor

HERE = Path(__file__).resolve().parent


class Target(NamedTuple):
    """work: in words. command: a file of this folder and its arguments. names: of its lines, a regular expression.
    wanted: the bound, a floor for ratios where higher is better."""

    work: str
    command: str
    names: str
    wanted: float
    higher: bool = False


TARGETS = (
    Target("event simulation over a plain pass, blocks", "simulator.py", r"simulator_over_floor/\d+/\d", 8),
    Target("the same, every op placed at random", "simulator.py", r"simulator_over_floor/\d+/\d/random", 15),
    Target("plans a second, two threads over one", "simulator.py", r"simulator_two_threads_over_one/.*", 1.8, True),
    Target("HEFT, 1,000 tasks, over a sort and a pass", "simulator.py", r"heft_over_sorted_pass/.*", 5),
    Target("an exact flip, us", "fusion.py", r"flip_microseconds/.*", 3),
    Target("a fusion answer, 20,000 ops, s", "fusion.py", r"fusion_answer_seconds/.*/20000", 2.5),
    Target("a fusion answer, 80,000 ops, s", "fusion.py", r"fusion_answer_seconds/.*/80000", 10),
    Target("peak memory of GO's decision, 80,000 ops, MB", "decisions.py", r"decision_peak_megabytes/go/.*", 600),
    Target("BRKGA, 5,000 evaluations, over its simulations", "brkga.py --floor", r"brkga_over_its_prices/.*", 1.3),
    Target("BRKGA, two threads over one", "brkga.py --floor", r"brkga_two_threads_over_one/.*", 1.8, True),
    Target("TASO, programs expanded, over C++", "rewriting.py", r"taso_graphs_per_second/.*/over_taso", 8, True),
    Target("TASO, rewrites priced, over C++", "rewriting.py", r"candidates_per_second/.*/over_taso", 8, True),
    Target("a step of X-RLflow, 500 candidates, s", "xrlflow.py", r"enumerate_seconds/[^/]*", 0.010),
    Target("the same with our sweeps, s", "xrlflow.py", r"enumerate_seconds/.*/sweeps", 0.010),
    Target("sharding, best team's cost over ours", "sharding.py --contest FOLDER", r"sharding_score/.*", 0.9, True),
    Target("a finished cell passed over, ms", "skipping.py", r"finished_cell_milliseconds", 25),
)


def lines_of(command: str, quick: bool, contest: Path | None) -> dict[str, dict[str, float]]:
    """name -> line, of what a benchmark prints; what it says on stderr goes on. Nothing where it needs the contest's
    folder and there is none."""
    file, *words = command.split()
    if "FOLDER" in words:
        if contest is None:
            return {}
        words = [str(contest.resolve()) if word == "FOLDER" else word for word in words]
    call = [sys.executable, str(HERE / file), *words, *["--quick"] * quick]
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line for line in found if line["value"] is not None}


def row(target: Target, printed: dict[str, dict[str, float]]) -> list[str]:
    """The cells of the table."""
    lines = [line for name, line in printed.items() if re.fullmatch(target.names, name)]
    wanted = f"{'at least' if target.higher else 'at most'} {target.wanted:g}"
    if not lines:
        return [target.work, "not measured", "", wanted, ""]
    low, high = min(line["value"] for line in lines), max(line["value"] for line in lines)
    noise = max((line["high"] - line["low"]) / 2 / line["value"] for line in lines)
    met = low >= target.wanted if target.higher else high <= target.wanted
    now = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    return [target.work, now, f"{noise:.0%}", wanted, "yes" if met else "no"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer repetitions")
    parser.add_argument("--contest", type=Path, metavar="FOLDER", help="the sharding contest's instances (17 minutes)")
    files = sorted({target.command.split()[0] for target in TARGETS})
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"of {', '.join(files)}; all without it")
    words = parser.parse_args()
    if unknown := set(words.files) - set(files):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; choose from {', '.join(files)}")
    chosen = [target for target in TARGETS if not words.files or target.command.split()[0] in words.files]
    console = Console()
    console.print(f"{processor()}, {platform.system()}, Python {platform.python_version()}")
    table = Table("work", "now", "noise", "wanted", "reached")
    printed: dict[str, dict[str, dict[str, float]]] = {}
    for target in chosen:
        if target.command not in printed:
            console.print(f"... {target.command}")
            printed[target.command] = lines_of(target.command, words.quick, words.contest)
        table.add_row(*row(target, printed[target.command]))
    console.print(table)


if __name__ == "__main__":
    main()
