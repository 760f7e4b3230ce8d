"""Workloads as graphs and back. A graph carries its workload as the content of a problem file (`Graph.program`)."""

import json
from dataclasses import replace
from weakref import WeakKeyDictionary

from graphopt.contests.tiling.tile_workload import SharedSlices, TileWorkload
from graphopt.contests.tiling.workload_files import FILE_BYTES, workload_json, workload_of_json
from graphopt.core.errors import Unreadable
from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.utils.limits import parse_json

CARRIES = "tiles"  # what such graphs carry, for those that need it
_known: WeakKeyDictionary[Graph, dict[SharedSlices, TileWorkload]] = WeakKeyDictionary()


def graph_of_workload(workload: TileWorkload) -> Graph:
    """Its graph: an op is called after its number. Tensors have a byte an element, ops the FLOP of their kind, and as
    measured time their base cost on a core that is called after its sizes, so that the digest knows these too."""
    builder = GraphBuilder(workload.name)
    tensors = [builder.tensor((height, width), "uint8") for width, height in
               zip(workload.widths, workload.heights, strict=True)]  # fmt: skip
    width, height = workload.native
    core = f"{width}x{height} of {workload.capacity:g} by {workload.bandwidth:g}"
    for op in range(workload.num_ops):
        made, kind = workload.output[op], "matmul" if workload.is_matmul[op] else "add"
        flops = 2.0 * workload.elements(made) * workload.depth(op) if workload.is_matmul[op] else None
        builder.op(kind, [tensors[t] for t in workload.inputs[op]], [tensors[made]], flops=flops, name=f"op{op}",
                   seconds={core: float(workload.base_costs[op])})  # fmt: skip
        if not workload.readers[made]:
            builder.output(tensors[made])
    graph = builder.build(json.dumps(workload_json(workload)).encode())
    _known[graph] = {workload.shared_slices: workload}
    return graph


def workload_of(graph: Graph, shared_slices: SharedSlices) -> TileWorkload:
    """The workload that a graph carries, under a reading of its memory, which graphs do not say. Raises GraphError
    where it carries none, or another graph's."""
    if graph not in _known:
        if not isinstance(graph.program, bytes):
            raise GraphError(f"graph {graph.name!r} carries no tiling problem; take dataset=tiling")
        try:
            workload = workload_of_json(parse_json(graph.program, f"graph {graph.name!r}", FILE_BYTES), graph.name)
        except Unreadable as error:
            raise GraphError(str(error)) from None
        if graph_of_workload(workload).hash != graph.hash:
            raise GraphError(f"graph {graph.name!r} carries the tiling problem of another graph; write it anew")
        _known[graph] = {workload.shared_slices: workload}
    known = _known[graph]
    if shared_slices not in known:
        known[shared_slices] = replace(next(iter(known.values())), shared_slices=shared_slices)
    return known[shared_slices]
