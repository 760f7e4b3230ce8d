"""What a policy of fusion reads of an op beside what encoders read: what inlining it would save and repeat, by the
machine's own constants, and what the compilers' rules say. No price is asked for.

Times are of the op alone, over the launch of a kernel, as logarithms. Shape legend: N ops, E operands, R reads by ops.
"""

import numpy as np
from numpy.typing import NDArray

from graphopt.core.fusible import Fusible, fusible
from graphopt.core.graph import F64, I64, Graph
from graphopt.core.machine import Device
from graphopt.problems.task import AssignTask
from graphopt.search.fusion.xla_priority import xla_choice, xla_models

COLUMNS = (
    "default", "free", "inline_all", "xla_priority",
    "evaluations", "evaluations_at_most", "read_in_order", "read_strided", "read_by_contraction", "read_by_reduction",
    "readers", "repeated_work", "own_work", "bytes_saved", "bytes_read_again", "again_over_saved", "inputs",
    "readers_inputs", "readers_time", "occupancy", "readers_occupancy", "reduction", "contraction",
    "repeated_over_saved",
)  # fmt: skip
LIMIT = 5.0
REDUCTION, CONTRACTION = 1, 2  # of OP.heavy
F32 = NDArray[np.float32]


def fusion_columns(graph: Graph, task: AssignTask) -> F32:
    """[N, len(COLUMNS)] of a task whose first head is store or inline."""
    device = task.machine.devices[0]
    given = {**_rules(graph, task), **_inlining(fusible(graph), device)}
    table = np.stack([np.asarray(given[name], np.float64) for name in COLUMNS], 1)
    return np.clip(np.nan_to_num(table), -LIMIT, LIMIT).astype(np.float32)


def _rules(graph: Graph, task: AssignTask) -> dict[str, NDArray[np.generic]]:
    """What is done by default, by inlining everything that is legal, and by XLA (nothing, where the machine does not
    say what XLA's model reads)."""
    free, everything = task.mask(graph)[:, 0], task.initial(graph)
    everything[:, 0] = free
    says = xla_models(task.machine.devices[0])
    xla = xla_choice(graph, task)[0] & free if says else np.zeros(graph.num_ops, np.bool_)
    legal = task.canonical(graph, everything)[:, 0]
    return {"default": task.initial(graph)[:, 0], "free": free, "inline_all": legal, "xla_priority": xla}


def _inlining(f: Fusible, device: Device) -> dict[str, NDArray[np.generic]]:
    """An inlined op is evaluated once for every element that its readers read."""
    op, reader, source, read = _reads(f)
    evaluations, again = read["reads"] / np.maximum(op["numel"], 1)[source], read["same"]
    total, inputs = np.bincount(source, evaluations, len(op)).astype(np.float64), _distinct_inputs(f)
    unit = device.launch or 1e-6
    own = op["flops"] / np.where(op["heavy"] == CONTRACTION, device.contraction_flops, device.vector_flops) / unit
    bytes_in = _bytes_read(f)
    moved = (bytes_in + op["out_bytes"]) / device.bandwidth / unit
    repeated = op["flops"] * np.maximum(total - 1, 0) / device.vector_flops / unit
    saved, more = op["out_bytes"] * (1 + total) / device.bandwidth / unit, bytes_in * total / device.bandwidth / unit
    occupancy = np.minimum(1.0, np.maximum(op["numel"], 1) / max(device.saturation, 1.0))
    heavy = op["heavy"][reader]
    return {
        "evaluations": _log(total), "evaluations_at_most": _log(_largest(source, evaluations, len(op))),
        "read_in_order": np.bincount(source, ~again, len(op)) == 0,
        "read_strided": np.bincount(source, read["strided"], len(op)) > 0,
        "read_by_contraction": np.bincount(source, heavy == CONTRACTION, len(op)) > 0,
        "read_by_reduction": np.bincount(source, heavy == REDUCTION, len(op)) > 0,
        "readers": np.log2(1 + np.bincount(source, minlength=len(op))) / 2,
        "repeated_work": _log(repeated), "own_work": _log(own), "bytes_saved": _log(saved),
        "bytes_read_again": _log(more), "again_over_saved": _log(more) - _log(saved),
        "repeated_over_saved": _log(repeated) - _log(saved),
        "inputs": np.log2(1 + inputs) / 2, "readers_inputs": np.log2(1 + _largest(source, inputs[reader], len(op))) / 2,
        "readers_time": _log(_largest(source, np.maximum(own, moved)[reader], len(op))),
        "occupancy": _log(occupancy),
        "readers_occupancy": _log(1 / _largest(source, 1 / occupancy[reader], len(op), 1)),
        "reduction": op["heavy"] == REDUCTION, "contraction": op["heavy"] == CONTRACTION,
    }  # fmt: skip


def _reads(f: Fusible) -> tuple[NDArray[np.void], I64, I64, NDArray[np.void]]:
    """(ops [N], reading op [R], op that is read [R], edges [R]) without what no op makes."""
    made = f.edge["op"] >= 0
    return f.op, _owner(f)[made], f.edge["op"][made].astype(np.int64), f.edge[made]


def _owner(f: Fusible) -> I64:
    """[E] the op of each operand."""
    return np.repeat(np.arange(len(f.op)), f.op["in_end"] - f.op["in_start"])


def _distinct_inputs(f: Fusible) -> F64:
    pairs = np.unique(np.stack([_owner(f), f.edge["tensor"]], 1), axis=0)
    return np.bincount(pairs[:, 0], minlength=len(f.op)).astype(np.float64)


def _bytes_read(f: Fusible) -> F64:
    element = f.tensor["num_bytes"] / f.tensor["numel"]
    return np.bincount(_owner(f), f.edge["reads"] * element[f.edge["tensor"]], len(f.op)).astype(np.float64)


def _largest(owner: I64, value: F64, count: int, least: float = 0.0) -> F64:
    """[count] the largest value of each owner."""
    out = np.full(count, least)
    np.maximum.at(out, owner, value)
    return out


def _log(value: F64) -> F64:
    """log10 / 2, flat below a thousandth."""
    logs: F64 = np.log10(np.maximum(value, 1e-3)) / 2
    return logs
