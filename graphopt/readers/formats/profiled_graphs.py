"""Profiled graphs as JSON: op names, measured microseconds, result bytes, and the ops that each op reads.

A measured second is 1 FLOP, hence 1 s on an ideal device.
"""

from pathlib import Path

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.errors import Unreadable
from graphopt.utils.limits import JSON_BYTES, read_json

_FIELDS = ("names", "cost_us", "out_bytes", "inputs")


def read_profiled(path: str | Path) -> Graph:
    """Reads {"names": [N], "cost_us": [N], "out_bytes": [N], "inputs": [N] lists of op numbers}.

    Every op makes one tensor; those that nobody reads are graph outputs.
    """
    path = Path(path)
    if not path.is_file():
        raise GraphError(f"no file {path}; give the path of a profiled graph")
    try:
        data = read_json(path, JSON_BYTES)
        names, costs, sizes, inputs = (list(data[f]) for f in _FIELDS)
        if not len(names) == len(costs) == len(sizes) == len(inputs):
            raise ValueError("its lists differ in length")
        return _build(path.stem.removesuffix(".graph"), names, costs, sizes, inputs)
    except GraphError:
        raise
    except (Unreadable, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise GraphError(f"{path} is not a profiled graph ({error!r}); it needs lists {', '.join(_FIELDS)}") from error


def _build(name: str, names: list[str], costs: list[float], sizes: list[int], inputs: list[list[int]]) -> Graph:
    builder = GraphBuilder(name, "profiled")
    results = [builder.tensor((int(size),), "uint8") for size in sizes]
    for op, before in enumerate(inputs):
        if any(not 0 <= p < len(names) for p in before):
            raise GraphError(f"graph {name!r}: op {names[op]!r} reads an op that is not in the file")
        builder.op("opaque", [results[p] for p in before], [results[op]], flops=costs[op] * 1e-6, name=names[op])
    for op in set(range(len(names))) - {p for before in inputs for p in before}:
        builder.output(results[op])
    return builder.build()
