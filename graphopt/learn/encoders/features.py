"""Graph -> torch_geometric `Data`: features of ops and edges for encoders. O(1) at any graph size, no absolute
positions, all finite and clipped to [-LIMIT, LIMIT].

Sizes appear as log10 against a fixed reference and against the graph's own (logarithmic) mean, times against the launch
overhead of the machine's first device.
Shape legend: N ops, T tensors, E edges (one per producer, consumer and tensor), P pairs, D devices, B graphs.
"""

import hashlib
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from graphopt.core.graph import DTYPE_BYTES, DTYPES, F64, I64, Bool, Graph
from graphopt.core.machine import Device, Machine
from graphopt.core.operators import OPERATORS, Category

if TYPE_CHECKING:  # loaded late: checkpoints ask for DIGEST alone
    from torch_geometric.data import Data

LIMIT = 5.0
FEATURES: tuple[str, ...] = (
    "flops", "result_bytes", "input_bytes", "weight_bytes",
    "flops_relative", "result_bytes_relative", "input_bytes_relative", "weight_bytes_relative",
    "flops_of_largest", "result_bytes_of_largest", "intensity",
    "compute_time", "memory_time", "device_spread", "transfer_time",
    "elements", "elements_relative", "rank", "dim_1", "dim_2", "dim_3", "dim_4", "element_bytes", "floating",
    "operands", "fan_in", "fan_out", "users", "single_user", "output", "reads_weights", "reads_inputs",
    "expands", "user_elements_max", "user_elements_min",
    "user_reduction", "user_contraction", "user_opaque", "producer_reduction", "producer_contraction",
    "producer_opaque",
    "depth", "height", "slack", "expensive",
    *(f"category_{category.name.lower()}" for category in Category),
)  # fmt: skip
EDGE_FEATURES: tuple[str, ...] = (
    "bytes", "bytes_relative", "same_shape", "expands", "first_operand", "from_view", "to_view",
)  # fmt: skip
WIDTH, EDGE_WIDTH = len(FEATURES), len(EDGE_FEATURES)
MEANING = 1  # count up when a column of the same name comes to mean something else
# A digest of the features that weights of encoders are trained on: columns and operators, in order.
DIGEST = hashlib.sha256(
    repr((MEANING, FEATURES, EDGE_FEATURES, [operator.name for operator in OPERATORS])).encode()
).hexdigest()[:8]
Columns = dict[str, NDArray[np.generic]]


def op_columns(graph: Graph, machine: Machine) -> Columns:
    """One value per op for every name of FEATURES."""
    base = _base_tensors(graph)
    pairs = _user_pairs(graph, base)
    return _sizes(graph) | _times(graph, machine) | _shapes(graph) | _neighbours(graph, base, pairs) | _depths(graph)


def edge_columns(graph: Graph) -> Columns:
    """One value per edge for every name of EDGE_FEATURES."""
    source, target, tensor = graph.edges
    first_operand = np.append(graph.input_tensor, -1)[graph.input_ptr[:-1]]
    is_view = graph.category == Category.VIEW
    shape, size = _shape_digest(graph), _log(graph.tensor_bytes[tensor])
    elements = _log_elements(graph)
    return {
        "bytes": (size - 6) / 3,
        "bytes_relative": (size - _mean(size)) / 2,
        "same_shape": shape[tensor] == np.append(shape, np.uint64(0))[_first_results(graph)[target]],
        "expands": (_op_elements(graph, elements)[target] - elements[tensor]) / 3,
        "first_operand": tensor == first_operand[target],
        "from_view": is_view[source],
        "to_view": is_view[target],
    }


def _log(value: NDArray[np.generic]) -> F64:
    """log10, with everything below 1 as 1."""
    logs: F64 = np.log10(np.maximum(value.astype(np.float64), 1.0))
    return logs


def _mean(value: F64) -> float:
    return float(value.mean()) if len(value) else 0.0


def _sums(owner: NDArray[np.signedinteger], value: NDArray[np.generic], count: int) -> F64:
    """[count] sums of the values of each owner, in float64 so that no size overflows."""
    return np.bincount(owner, value.astype(np.float64), count).astype(np.float64, copy=False)


def _per_op(graph: Graph, operand_value: NDArray[np.generic]) -> F64:
    """[N] sum over the operands of each op."""
    return _sums(graph.operand_op, operand_value, graph.num_ops)


def _bytes(graph: Graph) -> tuple[F64, F64, F64]:
    """Bytes of results, operands and weights of each op, [N] each."""
    read = graph.tensor_bytes[graph.input_tensor]
    made = graph.producer >= 0
    results = _sums(graph.producer[made], graph.tensor_bytes[made], graph.num_ops)
    return results, _per_op(graph, read), _per_op(graph, np.where(graph.is_weight[graph.input_tensor], read, 0))


def _sizes(graph: Graph) -> Columns:
    results, inputs, weights = _bytes(graph)
    columns: Columns = {}
    sizes = {"flops": graph.flops, "result_bytes": results, "input_bytes": inputs, "weight_bytes": weights}
    for name, value in sizes.items():
        columns[name] = (_log(value) - 6) / 3
        columns[f"{name}_relative"] = (_log(value) - _mean(_log(value))) / 2
    columns["flops_of_largest"] = graph.flops / max(graph.flops.max(), 1.0)
    columns["result_bytes_of_largest"] = results / max(results.max(), 1.0)
    columns["intensity"] = (_log(graph.flops) - _log(results + inputs)) / 2
    return columns


def _peaks(device: Device) -> tuple[float, float]:
    """FLOP/s of vector work and of contractions."""
    if device.fusion_model == "xla_gpu" and device.cores > 0:
        peak = max(2.0 * device.clock * device.cores * device.fpus_per_core, 1.0)
        return peak, peak
    return device.vector_flops, device.contraction_flops


def _times(graph: Graph, machine: Machine) -> Columns:
    """Compute and memory time of the unfused op on the first device, over its launch overhead; how far devices differ;
    the time to send the result over a typical link. Without a launch overhead the mean op time stands in."""
    results, inputs, _ = _bytes(graph)
    moved = np.where(graph.category == Category.VIEW, 0.0, results + inputs)
    contraction = graph.category == Category.CONTRACTION
    compute = np.stack([graph.flops / np.where(contraction, *_peaks(d)[::-1]) for d in machine.devices])
    memory = np.stack([moved / d.bandwidth for d in machine.devices])
    launch = np.array([[d.launch] for d in machine.devices])
    total = np.maximum(compute, memory)
    unit = machine.devices[0].launch or _mean(total[0]) or 1.0
    floored = total + launch + unit * 1e-2
    apart = ~np.eye(machine.num_devices, dtype=bool)
    bandwidth, latency = machine.link_bandwidth_DD[apart], machine.link_latency_DD[apart]
    sent = results / np.median(bandwidth) + np.median(latency) if apart.any() else np.zeros(graph.num_ops)
    return {
        "compute_time": _log_over(compute[0], unit),
        "memory_time": _log_over(memory[0], unit),
        "device_spread": np.log10(floored.max(0) / floored.min(0)),
        "transfer_time": _log_over(sent, unit),
    }


def _log_over(seconds: F64, unit: float) -> F64:
    """log10(seconds / unit) / 2, flat below a hundredth of the unit."""
    logs: F64 = np.log10(np.maximum(seconds / unit, 0.0) + 1e-2) / 2
    return logs


def _log_elements(graph: Graph) -> F64:
    """[T] log10 of the number of elements, summed over dimensions so that nothing overflows (empty dimensions as 1)."""
    owner = np.repeat(np.arange(graph.num_tensors), np.diff(graph.shape_ptr))
    return _sums(owner, _log(graph.shape), graph.num_tensors)


def _op_elements(graph: Graph, elements_T: F64) -> F64:
    """[N] log10 of the elements of the largest result of each op (0 for ops without results)."""
    out = np.zeros(graph.num_ops)
    made = graph.producer >= 0
    np.maximum.at(out, graph.producer[made], elements_T[made])
    return out


def _first_results(graph: Graph) -> I64:
    """[N] first result of each op; num_tensors, one past the end, where there is none."""
    return np.where(np.diff(graph.output_ptr) > 0, graph.output_ptr[:-1], graph.num_tensors)


def _shape_digest(graph: Graph) -> NDArray[np.uint64]:
    """[T] equal for equal shapes."""
    ranks = np.diff(graph.shape_ptr)
    owner = np.repeat(np.arange(graph.num_tensors), ranks)
    axis = (np.arange(len(graph.shape)) - graph.shape_ptr[owner]).astype(np.uint64)
    mixed = (graph.shape.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(29)) * (np.uint64(2) * axis + np.uint64(0xBF58476D1CE4E5B9))
    digest = ranks.astype(np.uint64)
    np.add.at(digest, owner, mixed)
    return digest


def _shapes(graph: Graph) -> Columns:
    elements_T = _log_elements(graph)
    elements = _op_elements(graph, elements_T)
    first, end = _first_results(graph), np.append(graph.shape_ptr, len(graph.shape))
    rank = np.append(np.diff(graph.shape_ptr), 0)[first]
    padded = np.append(graph.shape, 1)
    relative = (elements - _mean(elements)) / 2
    columns: Columns = {"elements": elements / 4 - 1, "elements_relative": relative, "rank": rank / 4}
    for back in range(1, 5):
        position = np.where(rank >= back, end[first + 1] - back, len(graph.shape))
        columns[f"dim_{back}"] = np.log2(np.maximum(padded[position], 1)) / 8
    dtype = np.append(graph.dtype, 0)[first]
    columns["element_bytes"] = np.log2(np.array(DTYPE_BYTES, np.float64))[dtype] / 3
    columns["floating"] = np.array(["float" in name for name in DTYPES])[dtype]
    read = np.zeros(graph.num_ops)
    np.maximum.at(read, graph.operand_op, elements_T[graph.input_tensor])
    columns["expands"] = np.where(np.diff(graph.input_ptr) > 0, elements - read, 0) / 3
    return columns


def _base_tensors(graph: Graph) -> I64:
    """[T] the tensor behind chains of views; a tensor that no view made is its own base."""
    base = np.arange(graph.num_tensors)
    made = np.flatnonzero(graph.producer >= 0)
    maker = graph.producer[made]
    viewed = (graph.category[maker] == Category.VIEW) & (np.diff(graph.input_ptr)[maker] > 0)
    base[made[viewed]] = graph.input_tensor[graph.input_ptr[maker[viewed]]]
    while not np.array_equal(base, base[base]):
        base = base[base]
    return base


def _user_pairs(graph: Graph, base: I64) -> tuple[I64, I64]:
    """Distinct (op, user), [P] each: users are found through views; those of a view are its direct successors."""
    is_view = graph.category == Category.VIEW
    direct_source, direct_target, _ = graph.edges
    of_view = is_view[direct_source]
    through = graph.producer[base[graph.input_tensor]]
    keep = (through >= 0) & ~is_view[graph.operand_op]
    source = np.concatenate([through[keep], direct_source[of_view]]).astype(np.int64)
    target = np.concatenate([graph.operand_op[keep], direct_target[of_view]]).astype(np.int64)
    pairs = np.unique(source << 32 | target)
    return pairs >> 32, pairs & 0xFFFFFFFF


def _neighbours(graph: Graph, base: I64, pairs: tuple[I64, I64]) -> Columns:
    n, category = graph.num_ops, graph.category
    source, user = pairs
    users = np.bincount(source, minlength=n)
    read = base[graph.input_tensor]
    outside = (graph.producer[read] < 0) & ~graph.is_weight[read]
    columns: Columns = {
        "operands": np.log2(1 + np.diff(graph.input_ptr)) / 2,
        "fan_in": np.log2(1 + np.diff(graph.predecessors[0])) / 2,
        "fan_out": np.log2(1 + np.diff(graph.successors[0])) / 2,
        "users": np.log2(1 + users) / 2,
        "single_user": users == 1,
        "output": _outputs(graph, base),
        "reads_weights": _per_op(graph, graph.is_weight[read]) > 0,
        "reads_inputs": _per_op(graph, outside) > 0,
        "expensive": np.array([operator.expensive for operator in OPERATORS])[graph.kind],
    }
    for kind in (Category.REDUCTION, Category.CONTRACTION, Category.OPAQUE):
        columns[f"user_{kind.name.lower()}"] = np.bincount(source[category[user] == kind], minlength=n) > 0
        columns[f"producer_{kind.name.lower()}"] = np.bincount(user[category[source] == kind], minlength=n) > 0
    for kind in Category:
        columns[f"category_{kind.name.lower()}"] = category == kind
    return columns | _user_elements(graph, source, user, users)


def _outputs(graph: Graph, base: I64) -> Bool:
    """[N] the op makes a graph output, directly or through views."""
    makers = graph.producer[np.concatenate([base[graph.is_output], np.flatnonzero(graph.is_output)])]
    out = np.zeros(graph.num_ops, np.bool_)
    out[makers[makers >= 0]] = True
    return out


def _user_elements(graph: Graph, source: I64, user: I64, users: I64) -> Columns:
    """Largest and smallest ratio of a user's elements to the op's own, log10."""
    elements = _op_elements(graph, _log_elements(graph))
    ratio = (elements[user] - elements[source]) / 3
    largest, smallest = np.full(graph.num_ops, -np.inf), np.full(graph.num_ops, np.inf)
    np.maximum.at(largest, source, ratio)
    np.minimum.at(smallest, source, ratio)
    found = {"user_elements_max": largest, "user_elements_min": smallest}
    return {name: np.where(users > 0, value, 0) for name, value in found.items()}


def _depths(graph: Graph) -> Columns:
    """Longest path from a source (depth) and to a sink (height) in ops that are no views, over the longest path."""
    down, up = levels(graph)
    through = down + up + (graph.category != Category.VIEW) - 1.0  # steps of the longest path through the op
    longest = max(float(through.max()), 1.0)
    return {"depth": down / longest, "height": up / longest, "slack": 1 - np.maximum(through, 0) / longest}


def levels(graph: Graph) -> tuple[F64, F64]:
    """([N], [N]) steps of the longest path from a source and to a sink; views are no steps."""
    step = (graph.category != Category.VIEW).astype(np.float64).tolist()
    source, target = graph.edges[0].tolist(), graph.edges[1].tolist()
    depth, height = [0.0] * graph.num_ops, [0.0] * graph.num_ops
    for s, t in zip(source, target):  # by consumer, so the depth of `s` is final
        depth[t] = max(depth[t], depth[s] + step[s])
    for s, t in zip(reversed(source), reversed(target)):
        height[s] = max(height[s], height[t] + step[t])
    return np.array(depth), np.array(height)


_CACHE: "WeakKeyDictionary[Graph, dict[Machine, Data]]" = WeakKeyDictionary()


def graph_features(graph: Graph, machine: Machine) -> "Data":
    """Features of a graph on a machine, computed once; the tensors are shared, so never write into them.

    kind int64 [N] operator id; x float32 [N, WIDTH]; edge_index int64 [2, E] producer -> consumer, sorted by consumer;
    edge_attr float32 [E, EDGE_WIDTH]; reverse_index, reverse_attr: the same edges turned round, sorted by producer;
    num_ops int64 [1].
    """
    per_machine = _CACHE.setdefault(graph, {})
    if machine not in per_machine:
        per_machine[machine] = _data(graph, machine)
    return copy(per_machine[machine])  # `Data.to` works in place: the caller's copy moves, the stored one stays


def batch(datas: Sequence["Data"]) -> "Data":
    """B graphs as one disconnected graph: fields joined (of one graph shared), indices shifted; `num_ops` is [B]."""
    from torch_geometric.data import Batch

    return copy(datas[0]) if len(datas) == 1 else Batch.from_data_list(list(datas))


def _data(graph: Graph, machine: Machine) -> "Data":
    from torch_geometric.data import Data

    source, target, tensor = graph.edges
    edge_attr = _stack(edge_columns(graph), EDGE_FEATURES, len(tensor))
    turned = np.lexsort((target, source))
    return Data(
        kind=torch.from_numpy(graph.kind.astype(np.int64)),
        x=torch.from_numpy(_stack(op_columns(graph, machine), FEATURES, graph.num_ops)),
        edge_index=torch.from_numpy(np.stack([source, target]).astype(np.int64)),
        edge_attr=torch.from_numpy(edge_attr),
        reverse_index=torch.from_numpy(np.stack([target[turned], source[turned]]).astype(np.int64)),
        reverse_attr=torch.from_numpy(edge_attr[turned]),
        num_ops=torch.tensor([graph.num_ops]),
    )


def _stack(columns: Columns, names: tuple[str, ...], rows: int) -> NDArray[np.float32]:
    out = np.empty((rows, len(names)), np.float32)
    for i, name in enumerate(names):
        np.clip(columns[name], -LIMIT, LIMIT, out=out[:, i], casting="unsafe")
    return out
