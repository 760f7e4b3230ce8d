"""`expert`: placement by hand: a model is split into layers, neighbouring layers share a device, and devices get alike
shares of the work.

A layer is the set of ops that read the same weights, so that the steps of an unrolled recurrent network belong
together. Each layer on one device for all steps, as in the recurrent models of GO's, HDP's and ColocRL's tables. Layers
stand in the order in which their weights are first read. An op without weights belongs to the latest layer that it
depends on; behind the loss, where gradients come back, to the earliest, so that a layer's gradients are where the layer
is. Lookups of embeddings (gathers from a weight) are a layer of their own on the first device, whatever the balance.
Attention without weights stands with the layer that it depends on. The cut into runs of layers minimises the largest
time of a device.

No price is asked for; of the families of those tables nothing but the graph is known here.
Shape legend: N ops, T tensors, L layers, D devices.
"""

import numpy as np

from graphopt.core.graph import F64, I64, Graph
from graphopt.core.operators import OPERATOR_ID, Category
from graphopt.core.plan import Role
from graphopt.core.utils.compiled import njit
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.heuristics.rules import SchedulingInstance

_LOOKUPS = ("gather",)


class Expert(Optimizer):
    """One plan, also without evaluations; other choices than devices are the default's."""

    needs_roles = frozenset({Role.DEVICE})

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: AssignProblem) -> None:
        decision = problem.initial.copy()
        decision[:, problem.task.column(Role.DEVICE)] = by_layers(SchedulingInstance(problem.graph, problem.task))
        if problem.open:
            problem.cost(decision[None])
        else:
            problem.commit(decision)


def by_layers(instance: SchedulingInstance) -> I64:
    """[N] devices, layer by layer; only those that can run all ops count."""
    layer, seconds = layers(instance.graph), instance.kernels.time
    able = np.flatnonzero(np.isfinite(seconds).all(0))
    if not len(able):
        return np.zeros(len(layer), np.int64)
    time = np.bincount(layer + 1, seconds[:, able].mean(1), int(layer.max(initial=-1)) + 2).astype(np.float64)
    device = np.append(0, cut(time[1:], len(able)))  # lookups first
    chosen: I64 = able[device[layer + 1]]
    return chosen


def layers(graph: Graph) -> I64:
    """[N] the layer of every op; -1: lookups of embeddings."""
    lookup = np.isin(graph.kind, _LOOKUP_IDS)
    view, reads = graph.category == Category.VIEW, lookup | (graph.category == Category.CONTRACTION)
    weight, first = _weights(
        graph.input_ptr, graph.input_tensor, graph.output_ptr, view, reads, lookup, graph.is_weight, graph.tensor_bytes
    )
    ptr, source = graph.predecessors
    layer = _layers(ptr, source, weight, first, lookup)
    used = np.unique(layer[layer >= 0])
    return np.where(layer >= 0, np.searchsorted(used, layer), -1)


_LOOKUP_IDS = [OPERATOR_ID[name] for name in _LOOKUPS if name in OPERATOR_ID]


@njit(cache=True, nogil=True)
def _layers(ptr, source, weight, first, lookup):  # type: ignore[no-untyped-def]
    """[N] layers by the place of their weight in the order in which weights are first read, with gaps."""
    layer, behind = np.zeros(len(weight), np.int64), np.zeros(len(weight), np.bool_)
    for op in range(len(weight)):
        earliest, latest, late = np.int64(-1), np.int64(0), False  # of the ops that it depends on
        for i in range(ptr[op], ptr[op + 1]):
            known, late = layer[source[i]], late or behind[source[i]]
            if known >= 0:
                earliest, latest = known if earliest < 0 else min(earliest, known), max(latest, known)
        own = first[weight[op]] if weight[op] >= 0 else np.int64(-1)
        behind[op] = late or (own >= 0 and latest > own)
        if weight[op] >= 0:
            layer[op] = -1 if lookup[op] else own
        else:
            layer[op] = earliest if behind[op] and earliest >= 0 else latest
    return layer


@njit(cache=True, nogil=True)
def _weights(ptr, tensor, output_ptr, view, reads, lookup, is_weight, size):  # type: ignore[no-untyped-def]
    """([N] the largest weight that a contraction or a lookup reads, directly or through views, -1 without; [T] of each
    weight that contractions read its place in the order in which they are first read, else -1)."""
    base, first = np.arange(len(is_weight)), np.full(len(is_weight), -1)
    weight, count = np.full(len(view), -1), 0
    for op in range(len(view)):
        if view[op] and ptr[op] < ptr[op + 1]:
            base[output_ptr[op] : output_ptr[op + 1]] = base[tensor[ptr[op]]]
        elif reads[op]:
            for i in range(ptr[op], ptr[op + 1]):
                read = base[tensor[i]]
                if is_weight[read] and (weight[op] < 0 or size[read] > size[weight[op]]):
                    weight[op] = read
            if weight[op] >= 0 and not lookup[op] and first[weight[op]] < 0:
                first[weight[op]] = count
                count += 1
    return weight, first


HALVINGS = 60  # of the interval in which the least largest sum lies


def cut(time: F64, parts: int) -> I64:
    """[L] runs of layers, at most so many, whose largest sum is the least there is (up to rounding of sums). It is the
    smallest bound under which runs that are filled one after the other suffice, by bisection."""
    total = np.append(0.0, np.cumsum(time))
    low, high = max(float(time.max(initial=0.0)), float(total[-1]) / parts), float(total[-1])
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _ends(total, middle, parts)[-1] == len(time) else (middle, high)
    found: I64 = np.searchsorted(_ends(total, high, parts), np.arange(len(time)), side="right").astype(np.int64)
    return found


def _ends(total: F64, bound: float, parts: int) -> list[int]:
    """Where each run ends, filled up to the bound."""
    ends = [0]
    for _ in range(parts):
        full = (total[ends[-1]] + bound) * (1 + 1e-12)
        ends.append(max(ends[-1], int(np.searchsorted(total, full, side="right")) - 1))
    return ends[1:]
