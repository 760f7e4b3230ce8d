"""How long a sweep takes whose cells are all finished: start-up, finding that out, and the study's table, on the clock.

`python benchmarks/skipping.py [--quick]` makes 200 cells (20) of one small graph each in a folder of its own, gives the
same command again, in one process, and prints JSON lines {"name", "value", "unit", "low", "high"}. `--many 10000`
instead copies a finished cell so often, and times the sweep over all of them, its states, and its files. `--words
hydra/launcher=joblib hydra.launcher.n_jobs=2` starts the new cells so.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lines import say

import graphopt  # noqa: F401 (names Numba's cache, which is kept)

TOP = Path(__file__).resolve().parent.parent
CELL = ["algo=scan", "budget.evals=10", "dataset=synthetic", "dataset.families=[layered]", "dataset.ops=20"]


def words_of(place: Path, cells: int, study: str = "skipping") -> list[str]:
    sweep = ["-m", f"seed=range({cells})", "dataset.test=1", f"output_dir={place / 'out'}", f"study={study}"]
    return [*sweep, *CELL]


def call(place: Path, cells: int, *words: str, study: str = "skipping") -> tuple[float, int]:
    """(seconds, how many cells were passed over) of the sweep."""
    around = {**os.environ, "GRAPHOPT_CACHE": str(place / "cache"), "PYTHONPATH": str(TOP)}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "run.py", *words_of(place, cells, study), *words],
        cwd=TOP,
        env=around,
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return seconds, done.stdout.count(" is finished")


def copy(place: Path, cells: int) -> None:
    """Cells 1 to `cells` - 1 with the rows of cell 0, finished, and their configurations as if composed before."""
    os.environ["GRAPHOPT_CACHE"] = str(place / "cache")
    from graphopt.run.cell import Cell
    from graphopt.run.records.rows import as_lines

    study = place / "out" / "skipping"
    (known,) = (place / "cache" / "composed").glob("*.json")
    config = json.loads(known.read_text())["config"]
    first = Cell(config)
    rows = list(first.rows.rows)
    for seed in range(1, cells):
        cell = Cell({**config, "seed": seed})
        cell.path.mkdir(parents=True)
        for row in rows:
            (cell.path / row["decision"]).parent.mkdir(exist_ok=True)
            shutil.copy(first.path / row["decision"], cell.path / row["decision"])
        new = [{**row, "seed": seed, "cell": cell.path.name, "config_hash": cell.hash} for row in rows]
        (cell.path / "rows.jsonl").write_text(as_lines(new))
        cell.finish()
        (study / ".locks" / cell.path.name).touch()
    _remember(place, config, cells)


def _remember(place: Path, config: dict[str, Any], cells: int) -> None:
    """Lets a sweep over them, in this process, keep their configurations instead of composing them."""
    from graphopt.run import composed

    def found(words: list[str], sources: list[str]) -> dict[str, Any]:
        seed = next(int(word.removeprefix("seed=")) for word in words if word.startswith("seed="))
        if seed:  # that of 0 is kept already
            composed.keep_composed(words, sources, {**config, "seed": seed})
        return {**config, "seed": seed}

    usual, composed.find_composed = composed.find_composed, found  # type: ignore[assignment]
    sys.argv[1:] = words_of(place, cells)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        from graphopt.__main__ import run

        run()
    composed.find_composed = usual


def many(place: Path, cells: int) -> None:
    """The sweep over so many finished cells, `study status`, and what they take on the disk."""
    call(place, 1)
    copy(place, cells)
    seconds, skipped = call(place, cells)
    if skipped != cells:
        raise RuntimeError(f"passed over: {skipped} of {cells} cells")
    say(f"sweep_seconds/{cells}_finished_cells", [seconds], "s")
    study = place / "out" / "skipping"
    for name, words in (("status", ["study", "status"]), ("table", ["report"])):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "graphopt", *words, study], cwd=TOP, check=True, capture_output=True)
        say(f"{name}_seconds/{cells}_cells", [time.perf_counter() - start], "s")
    files = [file for file in study.rglob("*") if file.is_file()]
    say("files_per_cell", [len(files) / cells], "")
    say("kilobytes_per_cell", [sum(file.stat().st_size for file in files) / cells / 1e3], "kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 cells, three repetitions")
    parser.add_argument("--many", type=int, metavar="CELLS", help="finished cells, copied from one")
    parser.add_argument("--words", nargs="*", default=[], help="further words for the new cells, such as a launcher")
    said = parser.parse_args()
    if said.many:
        with tempfile.TemporaryDirectory() as place:
            return many(Path(place), said.many)
    quick = said.quick
    cells, repeats = (20, 3) if quick else (200, 5)
    with tempfile.TemporaryDirectory() as place:
        call(Path(place), 1, study="compiles")
        alone, _ = call(Path(place), 1, study="alone")
        first, skipped = call(Path(place), cells, *said.words)
        later, single = zip(*((call(Path(place), cells), call(Path(place), 1)) for _ in range(repeats)))
    if skipped or any(count != cells for _, count in later):
        raise RuntimeError(f"passed over: {skipped} cells at first, then {[count for _, count in later]}")
    say(f"sweep_seconds/{cells}_new_cells", [first], "s", {"words": " ".join(said.words)})
    say("new_cell_milliseconds", [1e3 * (first - alone) / (cells - 1)], "ms")
    say(f"sweep_seconds/{cells}_finished_cells", [seconds for seconds, _ in later], "s")
    more = [(many - one) / (cells - 1) for (many, _), (one, _) in zip(later, single)]
    say("finished_cell_milliseconds", [1e3 * seconds for seconds in more], "ms", {"sweep_of_one": single[0][0]})


if __name__ == "__main__":
    main()
