"""Pipelined placement of layer and operator graphs: what `contiguous` and `load_balance` reach, and how fast.

`python benchmarks/max_load.py FOLDER [--evals N]` prints a JSON line for every graph and method: load in ms, seconds,
evaluations, and the load over each figure that FOLDER/known.json publishes for the graph (`max_load_ms`). Every graph
runs on the machine that its file asks for. Without a folder, operator graphs of transformers are made up: some hundred
to two thousand ops with attention heads side by side; figures are then over the best contiguous split.
"""

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from graphopt import compat
from graphopt.construct import construct
from graphopt.datasets.files import GraphFiles
from graphopt.datasets.layer_graphs import read_devices
from graphopt.optimizer import solve
from graphopt.suggested_machine import filled

ALGOS = ("contiguous", "load_balance", "regal_local_heuristic")


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
        for layers, training in ((3, False), (6, False), (3, True), (12, True))[: 1 if asked.quick else 4]:
            write_transformer(Path(folder), layers, training)
        run(Path(folder), asked.evals)


def run(folder: Path, evals: int) -> None:
    """Prints the lines of all graphs of a folder."""
    table = folder / "known.json"
    known = json.loads(table.read_text())["max_load_ms"] if table.exists() else {}
    for file in GraphFiles(name="files", path=str(folder), train=[], val=[]).files():
        best_split = 0.0
        for algo in ALGOS:
            line = measure(file, algo, evals)
            best_split = best_split or line["ms"]
            figures = {name: ms for name, ms in known.get(file.stem, {}).items() if ms} or {"contiguous": best_split}
            line |= {f"over_{name}": round(line["ms"] / ms, 4) for name, ms in figures.items()}
            print(json.dumps(line), flush=True)


def measure(file: Path, algo: str, evals: int) -> dict[str, float | str]:
    """One solve."""
    node = compat.option("machine", "accelerators")
    machine = construct({**node, "devices": filled(node["devices"], read_devices(file))}, "machine")
    task = construct(compat.option("task", "placement"), "task", {"machine": machine})
    cost = construct(compat.option("cost", "simulator") | {"objective": "max_load", "threads": 1}, "cost",
                     {"machine": machine})  # fmt: skip
    graph = GraphFiles(name="files", path=str(file), train=[], val=[]).graphs("test")[0]
    begun = time.perf_counter()
    problem, _ = solve(construct(compat.option("algo", algo), "algo", {}), graph, task, cost, evals=evals)
    seconds = time.perf_counter() - begun
    return {"name": f"max_load_ms/{file.stem}/{algo}", "ops": graph.num_ops, "ms": round(1e3 * problem.best_cost, 5),
            "seconds": round(seconds, 2), "evaluations": problem.evals}  # fmt: skip


def write_transformer(folder: Path, layers: int, training: bool) -> None:
    """An operator graph of a transformer; in training with a mirrored backward pass on the same devices."""
    rng = np.random.default_rng(layers)
    forward: list[tuple[list[int], float, float, float]] = []  # operands, ms, bytes of weights, ms of its transfer

    def op(reads: list[int], ms: float, weights: float = 0.0, travel: float = 0.05) -> int:
        forward.append((reads, ms * float(rng.uniform(0.7, 1.3)), weights, travel))
        return len(forward) - 1

    x, mask = op([], 0.2, 1e8, 0.1), op([], 0.0, 0.0, 0.01)
    for _ in range(layers):
        heads = []
        for _ in range(8):
            q, k, v = (op([op([x], 0.1, 2e6)], 0.02) for _ in range(3))
            scores = op([op([q, k], 0.1), mask], 0.05)
            heads.append(op([op([scores], 0.1), v], 0.1))
        added = op([op([op(heads, 0.05)], 0.4, 4e6, 0.1), x], 0.05, travel=0.1)
        normal = op([added], 0.1, travel=0.1)
        inner = op([op([op([normal], 1.0, 2e7, 0.4)], 0.2, travel=0.4)], 1.0, 2e7, 0.1)
        x = op([op([inner, normal], 0.05, travel=0.1)], 0.1, travel=0.1)
    count = len(forward)
    nodes = [node(i, ms, size, i if training else None) for i, (_, ms, size, _) in enumerate(forward)]
    edges = [(r, i) for i, (reads, *_) in enumerate(forward) for r in reads]
    if training:
        nodes += [node(count + i, 2 * ms, 0.0, i) | {"isBackwardNode": 1} for i, (_, ms, *_) in enumerate(forward)]
        edges += [(count + i, count + r) for r, i in edges] + [(i, count + i) for i in range(count)]
    travel = [forward[i % count][3] for i in range(len(nodes))]
    data = {"maxFPGAs": 6, "maxCPUs": 1, "maxSizePerFPGA": 16e9, "nodes": nodes,
            "edges": [{"sourceId": a, "destId": b, "cost": travel[a]} for a, b in edges]}  # fmt: skip
    name = f"transformer{layers}_{'training' if training else 'inference'}.json"
    (folder / name).write_text(json.dumps(data))


def node(number: int, ms: float, size: float, colour: int | None) -> dict[str, float | int]:
    """A node as the format has it, ten times slower on a CPU."""
    made: dict[str, float | int] = {"id": number, "fpgaLatency": ms, "cpuLatency": 10 * ms, "size": size}
    return made if colour is None else made | {"colorClass": colour}


if __name__ == "__main__":
    main()
