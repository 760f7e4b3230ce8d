"""Graphs for the order of least memory, as JSON: ops, and tensors with a size, the op that makes it and those that read
it. Every op takes a second on an ideal device.
"""

from pathlib import Path
from typing import Any

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.errors import Unreadable
from graphopt.utils.limits import JSON_BYTES, read_json


def read_lifetimes(path: str | Path) -> Graph:
    """Reads {"ops": [names], "tensors": [{"size": bytes, "producer": op, "consumers": [ops], "keep": bool}]}, ops by
    their number. `producer` null: there from the start. `keep`: a graph output, which stays in memory."""
    path = Path(path)
    if not path.is_file():
        raise GraphError(f"no file {path}; give the path of a file of ops and tensors")
    try:
        data = read_json(path, JSON_BYTES)
        return _build(path.name.removesuffix(".json").removesuffix(".memory"), data["ops"], data["tensors"])
    except GraphError:
        raise
    except (Unreadable, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        needs = '"ops", and "tensors" with size, producer, consumers, keep'
        raise GraphError(f"{path} is not a file of ops and tensors ({error!r}); it needs {needs}") from error


def _build(name: str, ops: list[str], tensors: list[dict[str, Any]]) -> Graph:
    builder = GraphBuilder(name, "memory")
    reads: list[list[int]] = [[] for _ in ops]
    makes: list[list[int]] = [[] for _ in ops]
    for fields in tensors:
        tensor = builder.tensor((int(fields["size"]),), "uint8")
        for op in fields["consumers"]:
            reads[_known(op, ops, name)].append(tensor)
        if fields["producer"] is not None:
            makes[_known(fields["producer"], ops, name)].append(tensor)
        if fields["keep"]:
            builder.output(tensor)
    repeated = len(set(ops)) < len(ops)
    for i, op in enumerate(ops):
        builder.op("opaque", reads[i], makes[i], flops=1.0, name=f"{op}_{i}" if repeated else op)
    return builder.build()


def _known(op: int, ops: list[str], name: str) -> int:
    if not 0 <= op < len(ops):
        raise GraphError(f"graph {name!r}: a tensor names op {op}, and there are {len(ops)}")
    return op
