"""Files that `dataset=files` reads: stored graphs, task graphs, profiles, layer graphs, lifetimes, cost graphs."""

import dataclasses
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
from ..mutate import Draw, damaged_npz, json_file, text_file
from .studies import npz_parts, workshop

MACHINE = Machine(name="two", devices=(Device(name="a"), Device(name="b", vector_flops=2.0, contraction_flops=2.0)))
TASK = Scheduling(name="scheduling", machine=MACHINE, levels=4, placement="heft", fuse=False, max_ops=8, max_inputs=8,
                  max_duplicates=2)  # fmt: skip
RUNTIME, MEMORY = (Simulator(name="s", machine=MACHINE, objective=o, threads=1) for o in ("runtime", "peak_memory"))


def verify(graph: Graph, folder: Path) -> None:
    """What every graph must be, by plain loops; it comes back from a file; its default schedule is valid and has
    prices."""
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
    plans = TASK.realise(graph, TASK.initial(graph)[None])
    wrong = check(plans, MACHINE)
    costs = [float(model.price(plans).cost[0]) for model in (RUNTIME, MEMORY)]
    if wrong or not all(cost >= 0 for cost in costs):
        raise Wrong(f"the default costs {costs}; {wrong}")


def read(file: Path) -> None:
    for graph in GraphFiles(name="files", path=str(file), train=[], val=[]).graphs("test"):
        verify(graph, file.parent)


# --- Formats of others: made from the ops that each op reads.

Reads = list[list[int]]


def stg(rng: random.Random, reads: Reads) -> str:
    lines = [f"{op} {rng.randrange(9)} {len(those)} {' '.join(map(str, those))}" for op, those in enumerate(reads)]
    return "\n".join([f" {len(reads)}", *lines, "# a comment"]) + "\n"


def costgraph(rng: random.Random, reads: Reads) -> str:
    lines = []
    for op, those in enumerate(reads):
        inputs = " ".join(f"input_info {{ preceding_node: {p} preceding_port: 0 }}" for p in those)
        control = f"control_input: {op - 1}" if op and rng.random() < 0.3 else ""
        lines.append(f'node {{ name: "n{op}" id: {op} {inputs} {control} output_info {{ size: {rng.randrange(99)} }} '
                     f"compute_cost: {rng.randrange(99)} }}")  # fmt: skip
    return "\n".join(lines)


def profile(rng: random.Random, reads: Reads) -> Any:
    return {"names": [f"n{op}" for op in range(len(reads))], "cost_us": [rng.random() for _ in reads],
            "out_bytes": [rng.randrange(100) for _ in reads], "inputs": reads}  # fmt: skip


def layers(rng: random.Random, reads: Reads) -> Any:
    nodes = [{"id": op, "cpuLatency": rng.random(), "fpgaLatency": rng.random(), "size": rng.random() * 1e6,
              "colorClass": rng.randrange(3) + 10 * op} for op in range(len(reads))]  # fmt: skip
    links = [{"sourceId": a, "destId": b, "cost": rng.random()} for b, those in enumerate(reads) for a in those]
    return {"nodes": nodes, "edges": links}


def lifetimes(rng: random.Random, reads: Reads) -> Any:
    users = [[b for b, those in enumerate(reads) if a in those] for a in range(len(reads))]
    tensors = [{"size": rng.randrange(99), "producer": a, "consumers": u, "keep": not u} for a, u in enumerate(users)]
    given = {"size": 5, "producer": None, "consumers": [0], "keep": False}
    return {"ops": ["op"] * len(reads), "tensors": [*tensors, given]}


def format_of(name: str, file: str, make: Callable[[random.Random, Reads], Any]) -> Format:
    """What `make` gives is a text, damaged by tokens and lines, or JSON, damaged by its structure."""

    def write(rng: Draw, folder: Path) -> Path:
        reads = [sorted(rng.sample(range(op), min(op, rng.randrange(3)))) for op in range(rng.randrange(1, 9))]
        source = make(rng, reads)
        (folder / file).write_bytes((text_file if isinstance(source, str) else json_file)(rng, source))
        return folder / file

    return Format(name, write, read)


@lru_cache(maxsize=8)
def sound_graph(number: int) -> Path:
    """A small graph with shapes, views and real sizes; some also with measured seconds and shared devices."""
    graph, file = layered_graph(6 + 3 * number, np.random.default_rng(number), "layered"), workshop() / f"{number}.npz"
    if number % 2:
        lead = np.arange(graph.num_ops, dtype=np.int32)
        lead[1] = 0
        graph = dataclasses.replace(graph, measured={"cpu": np.ones(graph.num_ops)}, together=lead,
                                    attributes=tuple({"axis": 1} for _ in range(graph.num_ops)))  # fmt: skip
    save_graph(file, graph)
    return file


def write_graph(rng: Draw, folder: Path) -> Path:
    file = folder / "graph.npz"
    file.write_bytes(damaged_npz(rng, *npz_parts(sound_graph(rng.randrange(4)), ("texts",))))
    return file


GRAPHS = (
    Format("graph", write_graph, read), format_of("stg", "a.stg", stg), format_of("profile", "a.graph.json", profile),
    format_of("layers", "LayerGraphs_a.json", layers), format_of("lifetimes", "a.memory.json", lifetimes),
    format_of("costgraph", "a.pbtxt", costgraph),
)  # fmt: skip
