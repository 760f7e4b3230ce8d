"""Layer and operator graphs as JSON: ops measured on a CPU and an accelerator (format of msr-fiddle/dnn-partitioning).

Nodes have times in ms on both kinds of device, bytes that they keep, and optionally a colour: those of one colour share
a device. Edges have the ms that a transfer of their source's result takes; at the bandwidth `BYTES_PER_MS` of the set
the result has so many bytes. A file also says for which machine it was made: `machine=accelerators` is that machine.
"""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.errors import Unreadable
from graphopt.utils.limits import JSON_BYTES, read_json

BYTES_PER_MS = 2**31
MOST_DEVICES = 60  # of a machine that a file asks for


def is_layer_graph(path: Path) -> bool:
    """Whether a JSON file holds nodes and edges as layer graphs have them."""
    try:
        data = read_json(path, JSON_BYTES)
        return bool("fpgaLatency" in data["nodes"][0] and isinstance(data["edges"], list))
    except (Unreadable, ValueError, KeyError, TypeError, IndexError):
        return False


def read_layer_graph(path: str | Path) -> Graph:
    """Reads {"nodes": [{id, cpuLatency, fpgaLatency, size}], "edges": [{sourceId, destId, cost}]}.

    Of nodes also colorClass (null or absent: alone), supportedOnFpga (0: takes for ever there) and isBackwardNode,
    which becomes the attribute `backward`. Ids are numbers or strings. What a node keeps becomes a weight. One FLOP is
    a second on the accelerator (on the CPU where the former cannot).
    """
    path, data = Path(path), _load(path)
    try:
        return _build(path.stem.removeprefix("LayerGraphs_"), data["nodes"], data["edges"])
    except GraphError:
        raise
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError) as error:
        raise GraphError(f"{path} is not a layer graph ({error!r}); it needs nodes and edges with costs") from error


def read_devices(path: str | Path) -> dict[str, dict[str, float]]:
    """Kind of device -> `count`, and `capacity` in bytes of an accelerator, for which the file was made; as far as it
    says so."""
    data, facts = _load(Path(path)), dict[str, dict[str, float]]()
    for kind, key in (("accelerator", "maxFPGAs"), ("cpu", "maxCPUs")):
        count = data.get(key)
        if count is None:
            continue
        if not isinstance(count, int | float) or count != int(count) or not 0 <= count <= MOST_DEVICES:
            raise GraphError(f"{path}: {key} must be a whole number from 0 to {MOST_DEVICES}, not {count!r}")
        facts[kind] = {"count": int(count)}
    capacity = data.get("maxSizePerFPGA")
    if capacity is not None and "accelerator" in facts:
        if not isinstance(capacity, int | float) or not capacity > 0:
            raise GraphError(f"{path}: maxSizePerFPGA must be a positive number of bytes, not {capacity!r}")
        facts["accelerator"]["capacity"] = float(capacity)
    return facts


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise GraphError(f"no file {path}; give the path of a layer graph")
    try:
        data = read_json(path, JSON_BYTES)
    except (Unreadable, ValueError) as error:
        raise GraphError(f"{path} is not a layer graph ({error!r}); it needs nodes and edges with costs") from error
    if not isinstance(data, dict):
        raise GraphError(f"{path} is not a layer graph; it needs nodes and edges with costs")
    return data


def _build(name: str, nodes: list[dict[str, Any]], edges: list[dict[str, Any]]) -> Graph:
    builder = GraphBuilder(name, "layers")
    travel = {str(node["id"]): 0.0 for node in nodes}
    if len(travel) < len(nodes):
        raise GraphError(f"graph {name!r}: two nodes share an id")
    reads: dict[str, list[str]] = {i: [] for i in travel}
    for edge in edges:
        source, target = str(edge["sourceId"]), str(edge["destId"])
        if source not in travel or target not in travel:
            raise GraphError(f"graph {name!r}: the edge {source} -> {target} has an end that is no node")
        travel[source] = max(travel[source], float(edge["cost"]))
        reads[target].append(source)
    results = {i: builder.tensor((round(ms * BYTES_PER_MS),), "uint8") for i, ms in travel.items()}
    for node in nodes:
        kept = builder.tensor((round(node["size"]),), "uint8", weight=True)
        seconds, colour, op = _seconds(name, node), node.get("colorClass"), str(node["id"])
        builder.op(
            "opaque", [*(results[i] for i in reads[op]), kept], [results[op]], name=op,
            flops=seconds["accelerator" if isfinite(seconds["accelerator"]) else "cpu"], seconds=seconds,
            together=None if colour is None else str(colour),
            attributes={"backward": True} if node.get("isBackwardNode") else None,
        )  # fmt: skip
    read = {source for sources in reads.values() for source in sources}
    for i in travel.keys() - read:
        builder.output(results[i])
    return builder.build()


def _seconds(name: str, node: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by kind of device; inf where a node is not supported."""
    able = bool(node.get("supportedOnFpga", True))
    cpu, accelerator = float(node["cpuLatency"]), float(node["fpgaLatency"]) if able else float("inf")
    if not (isfinite(cpu) or isfinite(accelerator)):
        raise GraphError(f"graph {name!r}: node {node['id']} runs nowhere; give it a time on some device")
    return {"cpu": cpu * 1e-3, "accelerator": accelerator * 1e-3}
