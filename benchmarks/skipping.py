"""How long a sweep takes whose cells are all finished: start-up, finding that out, and the study's table, on the clock.

`python benchmarks/skipping.py [--quick]` makes 200 cells (20) of one small graph each in a folder of its own, gives the
same command again, in one process as ever, and prints JSON lines {"name", "value", "unit", "low", "high"}.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lines import say

import graphopt  # noqa: F401 (names Numba's cache, which is kept)

TOP = Path(__file__).resolve().parent.parent
CELL = ["algo=scan", "budget.evals=10", "dataset=synthetic", "dataset.families=[layered]", "dataset.ops=20"]


def call(place: Path, cells: int) -> tuple[float, int]:
    """(seconds, how many cells were passed over) of the sweep."""
    sweep = ["-m", f"seed=range({cells})", "dataset.test=1", f"output_dir={place / 'out'}", "study=skipping", *CELL]
    around = {**os.environ, "GRAPHOPT_CACHE": str(place / "cache"), "PYTHONPATH": str(TOP)}
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "run.py", *sweep], cwd=TOP, env=around, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return seconds, done.stdout.count(" is finished")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 cells, three repetitions")
    quick = parser.parse_args().quick
    cells, repeats = (20, 3) if quick else (200, 5)
    with tempfile.TemporaryDirectory() as place:
        first, skipped = call(Path(place), cells)
        later, single = zip(*((call(Path(place), cells), call(Path(place), 1)) for _ in range(repeats)))
    if skipped or any(count != cells for _, count in later):
        raise RuntimeError(f"passed over: {skipped} cells at first, then {[count for _, count in later]}")
    say(f"sweep_seconds/{cells}_new_cells", [first], "s")
    say(f"sweep_seconds/{cells}_finished_cells", [seconds for seconds, _ in later], "s")
    more = [(many - one) / (cells - 1) for (many, _), (one, _) in zip(later, single)]
    say("finished_cell_milliseconds", [1e3 * seconds for seconds in more], "ms", {"sweep_of_one": single[0][0]})


if __name__ == "__main__":
    main()
