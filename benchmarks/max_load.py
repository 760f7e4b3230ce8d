"""Pipelined placement of layer and operator graphs: what `load_balance` reaches, and how fast.

`python benchmarks/max_load.py FOLDER [--evals N]` prints a JSON line for every graph and method: load in ms, seconds,
evaluations, and the load over each figure that FOLDER/known.json publishes for the graph (`max_load_ms`). Every graph
runs on the machine that its file asks for. Without a folder, operator graphs are made from models of the zoo
(`operator_graphs.py`): 144 to 2,265 ops; figures are then over the contiguous split that `load_balance` begins with.
"""

import argparse
import json
import tempfile
import warnings
from pathlib import Path

from operator_graphs import WANTED, write

from graphopt.core.utils import registry
from graphopt.graphs.files import GraphFiles
from graphopt.graphs.readers.formats.task_graphs import read_devices
from graphopt.problems.optimizer import solve
from graphopt.run.config.construct import construct
from graphopt.run.config.suggested_machine import filled

ALGOS = ("load_balance", "local", "brkga", "regal_local")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--evals", type=int, default=5000)
    parser.add_argument("--quick", action="store_true", help="the smallest made-up graph only")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.folder is not None:
        run(asked.folder, asked.evals)
        return
    with tempfile.TemporaryDirectory() as folder:
        for wanted in WANTED[: 1 if asked.quick else None]:
            write(Path(folder), wanted)
        run(Path(folder), asked.evals)


def run(folder: Path, evals: int) -> None:
    """Prints the lines of all graphs of a folder."""
    table = folder / "known.json"
    known = json.loads(table.read_text())["max_load_ms"] if table.exists() else {}
    for file in GraphFiles(name="files", path=str(folder), train=[], val=[]).files():
        best_split = 0.0
        for algo in ALGOS:
            line = measure(file, algo, evals)
            best_split = best_split or measure(file, algo, 1)["ms"]
            figures = {name: ms for name, ms in known.get(file.stem, {}).items() if ms} or {"contiguous": best_split}
            line |= {f"over_{name}": round(line["ms"] / ms, 4) for name, ms in figures.items()}
            print(json.dumps(line), flush=True)


def measure(file: Path, algo: str, evals: int) -> dict[str, float | str]:
    """One solve."""
    node = registry.option("machine", "accelerators")
    machine = construct({**node, "devices": filled(node["devices"], read_devices(file))}, "machine")
    task = construct(registry.option("task", "placement"), "task", {"machine": machine})
    cost = construct(registry.option("cost", "simulator") | {"objective": "max_load", "threads": 1}, "cost",
                     {"machine": machine})  # fmt: skip
    graph = GraphFiles(name="files", path=str(file), train=[], val=[]).graphs("test")[0]
    problem, seconds = solve(construct(registry.option("algo", algo), "algo", {}), graph, task, cost, evals=evals)
    return {"name": f"max_load_ms/{file.stem}/{algo}", "ops": graph.num_ops, "ms": round(1e3 * problem.best_cost, 5),
            "seconds": round(seconds, 2), "evaluations": problem.evals}  # fmt: skip


if __name__ == "__main__":
    main()
