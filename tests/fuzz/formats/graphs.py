"""Files that `dataset=files` reads: stored graphs, task graphs, profiles, layer graphs, lifetimes, cost graphs."""

import json
import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.core.graph import Graph
from graphopt.core.machine import Device, Machine
from graphopt.core.oracles import check
from graphopt.costs.simulator import Simulator
from graphopt.graphs.files import GraphFiles
from graphopt.graphs.layered import layered_graph
from graphopt.graphs.readers.formats.graph_files import load_graph, save_graph
from graphopt.problems.tasks.placement import Scheduling

from ..judge import Format, Wrong
from ..mutate import Draw, damaged, damaged_bytes, damaged_text, json_text
from .archives import damaged_archive

MACHINE = Machine(name="two", devices=(Device(name="a"), Device(name="b", vector_flops=2.0, contraction_flops=2.0)))
TASK = Scheduling(name="scheduling", machine=MACHINE, levels=4, placement="heft", fuse=False, max_ops=8, max_inputs=8,
                  max_duplicates=2)  # fmt: skip
RUNTIME, MEMORY = (Simulator(name="s", machine=MACHINE, objective=o, threads=1) for o in ("runtime", "peak_memory"))


def verify(graph: Graph, folder: Path) -> None:
    """What every graph must be, by plain loops; it comes back from a file, and its default has prices."""
    made = set(np.flatnonzero(graph.producer < 0).tolist())
    for op in range(graph.num_ops):
        if not {int(t) for t in graph.operands(op)} <= made:
            raise Wrong(f"op {op} reads what is not made yet")
        made.update(graph.results(op))
    if made != set(range(graph.num_tensors)) or len(set(graph.op_names)) != graph.num_ops:
        raise Wrong("tensors or names are not those of the ops")
    if any(size < 0 for size in graph.tensor_bytes.tolist()) or not all(0 <= f < np.inf for f in graph.flops.tolist()):
        raise Wrong("a size or FLOP is negative or no number")
    save_graph(folder / "again.npz", graph)
    if load_graph(folder / "again.npz").hash != graph.hash:
        raise Wrong("the graph changes on its way through a file")
    priced(graph)


def priced(graph: Graph) -> None:
    """The default schedule is a valid plan, and its prices are numbers."""
    plans = TASK.realise(graph, TASK.initial(graph)[None])
    wrong = check(plans, MACHINE)
    costs = [float(model.price(plans).cost[0]) for model in (RUNTIME, MEMORY)]
    if wrong or not all(cost >= 0 for cost in costs):
        raise Wrong(f"the default costs {costs}; {wrong}")


def read(file: Path) -> None:
    for graph in GraphFiles(name="files", path=str(file), train=[], val=[]).graphs("test"):
        verify(graph, file.parent)


def _edges(rng: random.Random) -> list[list[int]]:
    """Ops that each op reads."""
    return [sorted(rng.sample(range(op), min(op, rng.randrange(3)))) for op in range(rng.randrange(1, 9))]


def stg(rng: random.Random) -> str:
    edges = _edges(rng)
    lines = [f"{op} {rng.randrange(9)} {len(reads)} {' '.join(map(str, reads))}" for op, reads in enumerate(edges)]
    return "\n".join([f" {len(edges)}", *lines, "# a comment"]) + "\n"


def profile(rng: random.Random) -> Any:
    edges = _edges(rng)
    return {"names": [f"n{op}" for op in range(len(edges))], "cost_us": [rng.random() for _ in edges],
            "out_bytes": [rng.randrange(100) for _ in edges], "inputs": edges}  # fmt: skip


def layers(rng: random.Random) -> Any:
    edges = _edges(rng)
    nodes = [{"id": op, "cpuLatency": rng.random(), "fpgaLatency": rng.random(), "size": rng.random() * 1e6,
              "colorClass": rng.randrange(3) + 10 * op} for op in range(len(edges))]  # fmt: skip
    links = [{"sourceId": a, "destId": b, "cost": rng.random()} for b, reads in enumerate(edges) for a in reads]
    return {"nodes": nodes, "edges": links}


def lifetimes(rng: random.Random) -> Any:
    edges = _edges(rng)
    users = [[b for b, reads in enumerate(edges) if a in reads] for a in range(len(edges))]
    tensors = [
        {"size": rng.randrange(99), "producer": a, "consumers": used, "keep": not used} for a, used in enumerate(users)
    ]
    return {
        "ops": ["op"] * len(edges),
        "tensors": [*tensors, {"size": 5, "producer": None, "consumers": [0], "keep": False}],
    }


def costgraph(rng: random.Random) -> str:
    lines = []
    for op, reads in enumerate(_edges(rng)):
        inputs = " ".join(f"input_info {{ preceding_node: {p} preceding_port: 0 }}" for p in reads)
        control = f"control_input: {op - 1}" if op and rng.random() < 0.3 else ""
        lines.append(f'node {{ name: "n{op}" id: {op} {inputs} {control} output_info {{ size: {rng.randrange(99)} }} '
                     f"compute_cost: {rng.randrange(99)} }}")  # fmt: skip
    return "\n".join(lines)


def of_text(name: str, file: str, make: Callable[[random.Random], str]) -> Format:
    """A format of texts: damaged by tokens and lines, sometimes by bits."""

    def write(rng: Draw, folder: Path) -> Path:
        source = damaged_text(rng, make(rng)).encode(errors="surrogatepass")
        (folder / file).write_bytes(damaged_bytes(rng, source) if rng.random() < 0.15 else source)
        return folder / file

    return Format(name, write, read)


def of_json(name: str, file: str, make: Callable[[random.Random], Any]) -> Format:
    """A format of JSON: damaged by its structure, sometimes by bits."""

    def write(rng: Draw, folder: Path) -> Path:
        source = json_text(damaged(rng, make(rng))).encode(errors="surrogatepass")
        (folder / file).write_bytes(damaged_bytes(rng, source) if rng.random() < 0.1 else source)
        return folder / file

    return Format(name, write, read)


@lru_cache(maxsize=8)
def sound_graph(number: int) -> Graph:
    """A small graph with shapes, views and real sizes; some also with measured seconds and shared devices."""
    import dataclasses

    graph = layered_graph(6 + 3 * number, np.random.default_rng(number), f"layered{number}")
    if number % 2:
        lead = np.arange(graph.num_ops, dtype=np.int32)
        lead[1] = 0
        return dataclasses.replace(graph, measured={"cpu": np.ones(graph.num_ops)}, together=lead,
                                   attributes=tuple({"axis": 1} for _ in range(graph.num_ops)))  # fmt: skip
    return graph


def stored(graph: Graph, folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, texts) of the file of a graph."""
    save_graph(folder / "sound.npz", graph)
    with np.load(folder / "sound.npz") as file:
        arrays = {name: file[name] for name in file.files}
    (folder / "sound.npz").unlink()
    return arrays, {"texts": json.loads(arrays.pop("texts").tobytes())}


def write_graph(rng: Draw, folder: Path) -> Path:
    file = folder / "graph.npz"
    file.write_bytes(damaged_archive(rng, *stored(sound_graph(rng.randrange(4)), folder)))
    return file


GRAPHS = (
    Format("graph", write_graph, read),
    of_text("stg", "a.stg", stg),
    of_json("profile", "a.graph.json", profile),
    of_json("layers", "LayerGraphs_a.json", layers),
    of_json("lifetimes", "a.memory.json", lifetimes),
    of_text("costgraph", "a.pbtxt", costgraph),
)
