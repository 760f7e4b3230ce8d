"""Layer graphs as JSON: layers measured on a CPU and on an accelerator (the format of msr-fiddle/dnn-partitioning).

Nodes have times in ms on both kinds of device, bytes that they keep, and a colour: those of one colour share a device.
Edges have the ms that a transfer of their source's result takes; at the bandwidth `BYTES_PER_MS` of the set the result
has so many bytes. `machine=accelerators6` is the machine for which the set was made.
"""

from pathlib import Path
from typing import Any

from graphopt.errors import Unreadable
from graphopt.graph import Graph, GraphError
from graphopt.graph_builder import GraphBuilder
from graphopt.limits import JSON_BYTES, read_json

BYTES_PER_MS = 2**31


def read_layer_graph(path: str | Path) -> Graph:
    """Reads {"nodes": [{id, cpuLatency, fpgaLatency, size, colorClass}], "edges": [{sourceId, destId, cost}]}.

    What a node keeps becomes a weight. One FLOP is a second on the accelerator.
    """
    path = Path(path)
    if not path.is_file():
        raise GraphError(f"no file {path}; give the path of a layer graph")
    try:
        data = read_json(path, JSON_BYTES)
        return _build(path.stem.removeprefix("LayerGraphs_"), data["nodes"], data["edges"])
    except GraphError:
        raise
    except (Unreadable, ValueError, KeyError, TypeError) as error:
        raise GraphError(f"{path} is not a layer graph ({error!r}); it needs nodes and edges with costs") from error


def _build(name: str, nodes: list[dict[str, Any]], edges: list[dict[str, Any]]) -> Graph:
    builder = GraphBuilder(name, "layers")
    travel = {node["id"]: 0.0 for node in nodes}
    reads: dict[int, list[int]] = {node["id"]: [] for node in nodes}
    for edge in edges:
        source, target = edge["sourceId"], edge["destId"]
        if source not in travel or target not in reads:
            raise GraphError(f"graph {name!r}: the edge {source} -> {target} has an end that is no node")
        travel[source] = max(travel[source], float(edge["cost"]))
        reads[target].append(source)
    results = {i: builder.tensor((round(ms * BYTES_PER_MS),), "uint8") for i, ms in travel.items()}
    for node in nodes:
        kept = builder.tensor((round(node["size"]),), "uint8", weight=True)
        seconds = {"cpu": node["cpuLatency"] * 1e-3, "accelerator": node["fpgaLatency"] * 1e-3}
        builder.op(
            "opaque", [*(results[i] for i in reads[node["id"]]), kept], [results[node["id"]]], name=str(node["id"]),
            flops=seconds["accelerator"], seconds=seconds, together=str(node["colorClass"]),
            attributes={"backward": True} if node.get("isBackwardNode") else None,
        )  # fmt: skip
    for i in travel.keys() - {edge["sourceId"] for edge in edges}:
        builder.output(results[i])
    return builder.build()
