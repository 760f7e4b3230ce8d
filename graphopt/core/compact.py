"""Plans as small arrays: of random keys only the order is kept, and only where it matters. Prices stay exactly equal.

Shape legend: N ops, T tensors, D devices.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import Graph
from graphopt.core.plan import CHOICE, Plans

Arrays = dict[str, NDArray[Any]]


def compact(plan: Plans, devices: int) -> Arrays:
    """device [N], priority [N], inline [N] and, if the plan has its own, transfer [T, D], of a batch of one; and
    choice_NAME [N] for each of its further choices.

    Priorities are dense ranks from 1 over the ops that have kernels, transfer priorities dense ranks from 1 over the
    (result, destination) pairs that are sent; all else is 0, devices of inlined ops too. Equal ones stay equal, so ties
    are broken as before.
    """
    device, inline = plan.device[0], plan.inline[0]
    arrays = {
        "device": _small(np.where(inline, 0, device)),
        "priority": _ranks(plan.priority[0], ~inline),
        "inline": inline,
    }
    if plan.transfer is not None:
        arrays["transfer"] = _ranks(plan.transfer[0], sent(plan.graph, device, inline, devices))
    return arrays | {CHOICE + name: _small(array[0]) for name, array in plan.choices.items()}


def same(a: Mapping[str, NDArray[Any]], b: Mapping[str, NDArray[Any]]) -> bool:
    """Whether two compact plans are equal, and so are their prices."""
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def expand(graph: Graph, arrays: Mapping[str, NDArray[Any]]) -> Plans:
    """The plan of stored arrays, a batch of one; ranks count as priorities."""
    transfer = arrays["transfer"][None].astype(np.float64) if "transfer" in arrays else None
    device, priority = arrays["device"].astype(np.int16), arrays["priority"].astype(np.float64)
    choices = {
        name.removeprefix(CHOICE): array.astype(np.int16)[None]
        for name, array in arrays.items()
        if name.startswith(CHOICE)
    }
    return Plans(graph, device[None], priority[None], arrays["inline"].astype(np.bool_)[None], transfer, choices)


def sent(graph: Graph, device: NDArray[np.int16], inline: NDArray[np.bool_], devices: int) -> NDArray[np.bool_]:
    """[T, D] where a result has to travel: it is needed by a kernel on another device than its own.

    An inlined op needs its operands wherever its readers are computed.
    """
    needed = np.zeros((graph.num_tensors, devices), np.bool_)
    first, place = graph.output_ptr.tolist(), device.tolist()
    for op in range(graph.num_ops - 1, -1, -1):
        operands = graph.operands(op)
        if inline[op]:
            needed[operands] |= needed[first[op] : first[op + 1]].any(0)
        else:
            needed[operands, place[op]] = True
    made = np.flatnonzero(graph.producer >= 0)
    maker = graph.producer[made]
    needed[: len(needed) - len(made)] = False  # graph inputs are where they are needed
    needed[made, device[maker]] = False
    needed[made[inline[maker]]] = False
    return needed


def _ranks(values: NDArray[Any], where: NDArray[np.bool_]) -> NDArray[Any]:
    """Dense ranks of the chosen values, smallest 1; 0 elsewhere."""
    out = np.zeros(values.shape, np.int64)
    out[where] = np.unique(values[where], return_inverse=True)[1] + 1
    return _small(out)


def _small(values: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """In the smallest unsigned type that holds them."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
