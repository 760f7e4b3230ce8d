"""Operator graphs in the published JSON form (`readers.formats.task_graphs`), made from the project's own models.

Times are those of a simulated GPU, ten times that on the CPU; transfers go at `BANDWIDTH`. Training graphs have a
mirrored backward pass: for every op its gradient, for one with weights also theirs, and sums of gradients where a
result has several readers; each on the device of its forward op, but for some that have no mark of one (`stray`).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.core.fusible import view_inline
from graphopt.core.graph import Graph
from graphopt.core.utils import registry
from graphopt.costs.one_kernel.kernel_time import kernel_graph
from graphopt.graphs.zoo_dataset import ZooDataset
from graphopt.run.config.construct import construct

BANDWIDTH = 300.0e9  # bytes a second between accelerators
STRAY = 0.03  # share of backward nodes without a colour

Node = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """One file. room: bytes of all accelerators over those of all nodes; `inf`: no limit."""

    spec: dict[str, Any]  # of a model, as dataset=zoo has it
    training: bool
    accelerators: int
    room: float
    stray: bool = False

    @property
    def name(self) -> str:
        model = "_".join(str(value) for value in self.spec.values())
        traits = ["training" if self.training else "inference", f"{self.accelerators}acc"]
        return "_".join([model, *traits, *(["tight"] if self.room < 2 else []), *(["stray"] if self.stray else [])])


def bert(layers: int) -> dict[str, Any]:
    return {"model": "bert", "layers": layers, "batch": 8}


WANTED = (
    Wanted(bert(3), False, 3, 1.3),
    Wanted(bert(6), False, 6, 8.0),
    Wanted(bert(12), False, 6, 1.3),
    Wanted({"onnx": "light_resnet50"}, False, 6, 8.0),
    Wanted({"onnx": "light_densenet121"}, False, 8, 1.3),
    Wanted({"onnx": "light_inception_v1"}, False, 3, 8.0),
    Wanted(bert(3), True, 3, 8.0),
    Wanted(bert(6), True, 6, 1.3),
    Wanted(bert(6), True, 6, 8.0, stray=True),
    Wanted(bert(12), True, 8, 8.0),
    Wanted({"onnx": "light_resnet50"}, True, 6, 1.3),
    Wanted({"onnx": "light_inception_v2"}, True, 8, 8.0),
)


def write(folder: Path, wanted: Wanted) -> Path:
    """Writes one file and returns its path."""
    specs = [wanted.spec]
    graph = ZooDataset(name="zoo", train=[], val=[], test=specs, cache_dir=None).graphs("test")[0]
    nodes, reads, travel = _forward(graph, wanted.training)
    if wanted.training:
        nodes, reads, travel = _with_backward(nodes, reads, travel, wanted.stray)
    edges = [{"sourceId": a, "destId": b, "cost": travel[a]} for b, sources in enumerate(reads) for a in sources]
    total = sum(node["size"] for node in nodes)
    data = {"maxFPGAs": wanted.accelerators, "maxCPUs": 1, "nodes": nodes, "edges": edges,
            "maxSizePerFPGA": wanted.room * total / wanted.accelerators}  # fmt: skip
    path = folder / f"{wanted.name}.json"
    path.write_text(json.dumps(data))
    return path


def _forward(graph: Graph, coloured: bool) -> tuple[list[Node], list[list[int]], list[float]]:
    """(nodes, sources of each, ms that the result of each travels)."""
    gpu = construct(registry.option("machine", "gpu2"), "machine").devices[:1]
    view = view_inline(graph)
    seconds = kernel_graph(graph, np.zeros(graph.num_ops, np.bool_), gpu).time[:, 0]
    ms = 1e3 * np.where(view, 0.0, seconds)
    nodes = [_node(i, ms[i], int(graph.weight_bytes[i]), i if coloured else None) for i in range(graph.num_ops)]
    source, target, _ = graph.edges
    reads: list[list[int]] = [[] for _ in nodes]
    for a, b in sorted(set(zip(source.tolist(), target.tolist(), strict=True))):
        reads[b].append(a)
    return nodes, reads, (1e3 * graph.result_bytes / BANDWIDTH).tolist()


def _node(number: int, ms: float, size: float, colour: int | None) -> Node:
    made = {"id": number, "fpgaLatency": float(ms), "cpuLatency": 10 * float(ms), "size": size}
    return made if colour is None else made | {"colorClass": colour}


def _with_backward(nodes: list[Node], reads: list[list[int]], travel: list[float], stray: bool) -> Any:
    """The same with a backward pass: an op's gradient reads those of its readers, and what the op read."""
    rng, forward = np.random.default_rng(0), len(nodes)
    nodes, reads, travel = list(nodes), list(reads), list(travel)
    comes: list[list[int]] = [[] for _ in nodes]  # nodes that make parts of the gradient of each result

    def add(op: int, ms: float, sources: list[int], cost: float) -> int:
        colour = None if stray and rng.random() < STRAY else op
        nodes.append(_node(len(nodes), ms, 0.0, colour) | {"isBackwardNode": 1})
        reads.append(sorted(set(sources)))
        travel.append(cost)
        return len(nodes) - 1

    for op in reversed(range(forward)):
        ms, parts = nodes[op]["fpgaLatency"], comes[op]
        come = parts if len(parts) < 2 else [add(op, 0.1 * ms, parts, travel[op])]
        given = max((travel[i] for i in reads[op]), default=0.0)
        grad = add(op, ms, [*come, *reads[op], op], given)
        if nodes[op]["size"]:
            update = add(op, ms, [*come, *reads[op]], nodes[op]["size"] / BANDWIDTH * 1e3)
            add(op, 0.05 * ms, [update], 0.0)
        for i in reads[op]:
            comes[i].append(grad)
    return nodes, reads, travel
