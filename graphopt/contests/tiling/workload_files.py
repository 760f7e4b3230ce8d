"""Workloads and schedules as the contest's JSON files; workloads as graphs and back.

A graph carries its workload as the content of a problem file (`Graph.program`).
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from graphopt.contests.tiling.tile_workload import MOST_SIDE, SharedSlices, TileSchedule, TileStep, TileWorkload
from graphopt.core.errors import Unreadable
from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.utils.limits import MIB, parse_json, read_json
from graphopt.core.utils.whole import whole_file

FILE_BYTES = 64 * MIB
PROBLEM_KEYS = ("widths", "heights", "inputs", "outputs", "base_costs", "op_types", "fast_memory_capacity",
                "slow_memory_bandwidth", "native_granularity")  # fmt: skip
SCHEDULE_KEYS = ("subgraphs", "granularities", "tensors_to_retain", "subgraph_latencies")
TYPES = {"MatMul": True, "Pointwise": False}
MOST_STEPS = 100_000
MOST_TILES = 2**22  # of all traversal orders of a file


def read_workload(path: Path | str) -> TileWorkload:
    """Reads a problem. Raises GraphError, in one sentence."""
    path = Path(path)
    if not path.is_file():
        raise GraphError(f"no file {path}; give the path of a tiling problem as JSON")
    try:
        return workload_of_json(read_json(path, FILE_BYTES), path.stem)
    except Unreadable as error:
        raise GraphError(f"{error}; give a tiling problem as JSON") from None


def workload_of_json(data: Any, name: str) -> TileWorkload:
    """The problem that a JSON value says. Raises GraphError."""
    said = _keys(data, PROBLEM_KEYS, name, "tiling problem", GraphError)
    native = _integers(said["native_granularity"], name, "native_granularity", GraphError)
    ops = {key: _list(said[key], name, key, GraphError) for key in ("inputs", "outputs", "base_costs", "op_types")}
    if len({len(part) for part in ops.values()}) != 1 or len(native) != 2:
        lengths = ", ".join(f"{key} {len(part)}" for key, part in ops.items())
        raise GraphError(f"{name}: its lists over ops differ in length ({lengths}), or native_granularity is no pair")
    outputs = [_integers(made, name, "outputs", GraphError) for made in ops["outputs"]]
    other = [op for op, made in enumerate(outputs) if len(made) != 1]
    if other:
        raise GraphError(f"{name}: op {other[0]} makes {len(outputs[other[0]])} tensors; it must make one")
    unknown = [kind for kind in ops["op_types"] if not isinstance(kind, str) or kind not in TYPES]
    if unknown:
        raise GraphError(f"{name}: there is no op type {str(unknown[0])[:40]!r}; use {' or '.join(TYPES)}")
    return TileWorkload(
        name=name, widths=_integers(said["widths"], name, "widths", GraphError),
        heights=_integers(said["heights"], name, "heights", GraphError),
        inputs=tuple(_integers(read, name, "inputs", GraphError) for read in ops["inputs"]),
        output=tuple(made[0] for made in outputs),
        base_costs=tuple(_number(cost, name, "base_costs", GraphError) for cost in ops["base_costs"]),
        is_matmul=tuple(TYPES[kind] for kind in ops["op_types"]),
        capacity=_number(said["fast_memory_capacity"], name, "fast_memory_capacity", GraphError),
        bandwidth=_number(said["slow_memory_bandwidth"], name, "slow_memory_bandwidth", GraphError),
        native=(native[0], native[1]),
    )  # fmt: skip


def workload_json(workload: TileWorkload) -> dict[str, Any]:
    """The same value again, with keys in the contest's order."""
    return {
        "widths": list(workload.widths), "heights": list(workload.heights),
        "inputs": [list(read) for read in workload.inputs], "outputs": [[made] for made in workload.output],
        "base_costs": list(workload.base_costs),
        "op_types": ["MatMul" if product else "Pointwise" for product in workload.is_matmul],
        "fast_memory_capacity": workload.capacity, "slow_memory_bandwidth": workload.bandwidth,
        "native_granularity": list(workload.native),
    }  # fmt: skip


def read_schedule(path: Path | str) -> tuple[TileSchedule, tuple[float, ...]]:
    """(schedule, the latency that the file claims of each step). Raises Unreadable."""
    return schedule_of_json(read_json(path, FILE_BYTES), str(path))


def schedule_of_json(data: Any, name: str) -> tuple[TileSchedule, tuple[float, ...]]:
    """The same of a JSON value. name: for messages. Raises Unreadable."""
    said = _keys(data, SCHEDULE_KEYS, name, "tiling schedule", Unreadable)
    parts = {key: _list(said[key], name, key, Unreadable) for key in SCHEDULE_KEYS}
    steps = len(parts["subgraphs"])
    orders = said.get("traversal_orders")
    orders = [None] * steps if orders is None else _list(orders, name, "traversal_orders", Unreadable)
    if {len(part) for part in parts.values()} != {len(orders)} or not 0 < steps <= MOST_STEPS:
        lengths = ", ".join(f"{key} {len(part)}" for key, part in parts.items())
        raise Unreadable(f"{name}: its lists over subgraphs differ in length or are empty ({lengths})")
    return TileSchedule(tuple(_step(parts, orders, place, name) for place in range(steps))), tuple(
        _number(latency, name, "subgraph_latencies", Unreadable) for latency in parts["subgraph_latencies"]
    )


def _step(parts: dict[str, list[Any]], orders: list[Any], place: int, name: str) -> TileStep:
    tile = _integers(parts["granularities"][place], name, "granularities", Unreadable)
    if len(tile) != 3:
        raise Unreadable(f"{name}: granularity {place} has {len(tile)} numbers; it needs width, height and depth")
    given = orders[place]
    order = None if given is None else _integers(given, name, "traversal_orders", Unreadable, MOST_TILES)
    return TileStep(
        _integers(parts["subgraphs"][place], name, "subgraphs", Unreadable), (tile[0], tile[1], tile[2]),
        _integers(parts["tensors_to_retain"][place], name, "tensors_to_retain", Unreadable), order,
    )  # fmt: skip


def schedule_json(schedule: TileSchedule, latencies: tuple[float, ...]) -> dict[str, Any]:
    """The contest's value of a schedule; latencies: of each step."""
    return {
        "subgraphs": [list(step.ops) for step in schedule.steps],
        "granularities": [list(step.tile) for step in schedule.steps],
        "tensors_to_retain": [list(step.retain) for step in schedule.steps],
        "traversal_orders": [None if step.order is None else list(step.order) for step in schedule.steps],
        "subgraph_latencies": list(latencies),
    }


def write_json(path: Path | str, value: dict[str, Any]) -> None:
    """Writes a problem or a schedule, all or nothing, a key a line."""
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(part)}" for key, part in value.items())
    with whole_file(Path(path)) as file:
        file.write(f"{{\n{lines}\n}}\n".encode())


Error = Callable[[str], Exception]


def _keys(data: Any, keys: tuple[str, ...], name: str, what: str, error: Error) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise error(f"{name} is no {what}: it holds no JSON object")
    missing = [key for key in keys if key not in data]
    if missing:
        raise error(f"{name} is no {what}: it has no {', '.join(missing)}")
    return data


def _list(value: Any, name: str, key: str, error: Error) -> list[Any]:
    if not isinstance(value, list):
        raise error(f"{name}: {key} is no list")
    return value


def _integers(value: Any, name: str, key: str, error: Error, most: int = 2 * MOST_SIDE) -> tuple[int, ...]:
    found = _list(value, name, key, error)
    if not all(type(number) is int and abs(number) <= most for number in found) or len(found) > most:
        raise error(f"{name}: {key} holds what is no whole number, or one beyond {most:,}")
    return tuple(found)


def _number(value: Any, name: str, key: str, error: Error) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise error(f"{name}: {key} holds {str(value)[:40]!r}, which is no finite number")
    number: float = value
    return number


CARRIES = "tiles"  # what such graphs carry, for tasks that need it
_known: WeakKeyDictionary[Graph, dict[SharedSlices, TileWorkload]] = WeakKeyDictionary()


def graph_of_workload(workload: TileWorkload) -> Graph:
    """Its graph: an op is called after its number. Tensors have a byte an element, ops the FLOP of their kind. Their
    base cost is the measured time on a core that is called after its sizes, so that the digest knows these too."""
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
