"""`contiguous`: the best split of a pipeline into stages; each lies between two prefixes of a topological order.

Tarnawski et al., "Efficient algorithms for device placement of DNN graph operators" (NeurIPS 2020), for `max_load`.
Many orders are split by dynamic programming; where the graph has few enough ideals, another one over all of them then
finds the optimum over all contiguous splits. In training graphs whose backward ops are marked and share devices with
forward ops, the forward pass is split and the backward pass follows. Splits respect the capacity of devices.

The orders, our choice: as given, depth first, by levels from either end, along an eigenvector, narrowest first; then
mixtures of these, and orders that keep the best split and mix within and across its borders.
"""

import warnings
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.sparse import csr_array

from graphopt.core.graph import F64, I64
from graphopt.core.head import Role
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import Objective
from graphopt.problems.optimizer import Optimizer
from graphopt.search.heuristics.partition import chain, fiedler
from graphopt.search.pipelines.blocks import blocks
from graphopt.search.pipelines.ideal_split import ideals, split_ideals
from graphopt.search.pipelines.linear_split import (
    LinearSplit,
    depth_first,
    levels,
    narrow,
    split_order,
    to_devices,
    topological,
)  # fmt: skip
from graphopt.search.pipelines.pipeline import Pipeline, Stream, exchange, pipeline, stream
from graphopt.utils.ranges import Between, Whole


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long splits are looked for; in counts, so that the answer does not depend on the machine.

    orders: mixtures that are split after the orders themselves. max_ideals: beyond so many ideals there is no proof.
    max_steps: nor where so many pairs of them would have to be looked at (some 5 million a second).
    """

    orders: Whole
    max_ideals: Whole
    max_steps: Annotated[int, Between(0, 10**12)]


USUAL = Effort(orders=60, max_ideals=20_000, max_steps=50_000_000)  # of searches that start from contiguous splits


class Split(NamedTuple):
    """A contiguous split."""

    device: NDArray[np.int64]  # [M] device of each item; empty where no split fits
    load: float  # seconds, as `graphopt.search.pipelines.pipeline` counts them
    proved: bool  # none of the contiguous splits is better


class Contiguous(Optimizer):
    """yaml: conf/algo/contiguous.yaml. One evaluation: the best split, which is found without asking for prices."""

    needs_roles = frozenset({Role.DEVICE})
    objectives = frozenset[Objective]({"max_load"})

    def __init__(self, *, name: str, effort: Effort) -> None:
        self.name, self.effort = name, effort

    def solve(self, problem: AssignProblem) -> None:
        line = pipeline(problem)
        split = best_split(line, self.effort, problem.rng)
        if not len(split.device):
            warnings.warn(f"algo={self.name}: no contiguous split of {problem.graph.name!r} fits", stacklevel=2)
            return
        if not split.proved:
            warnings.warn(
                f"algo={self.name}: {problem.graph.name!r} has too many ideals, so the answer is the best split of "
                f"{self.effort.orders} orders and more; to try, raise algo.effort.max_ideals and max_steps",
                stacklevel=2,
            )
        decision = decided(problem, line, split.device[None])
        if problem.open:
            problem.cost(decision)
        problem.commit(decision[0])


def decided(problem: AssignProblem, line: Pipeline, of_item: NDArray[np.integer]) -> NDArray[np.int16]:
    """[B, N, H] the initial decision with items on these devices [B, M]."""
    decision = np.repeat(problem.initial[None], len(of_item), 0)
    decision[:, :, problem.task.column(Role.DEVICE)] = line.devices(of_item)
    return decision


def best_split(line: Pipeline, effort: Effort, rng: Generator) -> Split:
    """The best contiguous split that the effort finds."""
    block, first = blocks(line)
    flow = stream(line, np.where(line.item >= 0, block[line.item], -1))
    best = _by_orders(line, flow, first, effort.orders, rng)
    lattice = ideals(first, effort.max_ideals)
    proved = False
    if lattice is not None:
        found = split_ideals(flow, line.kinds, lattice, best.cost, effort.max_steps)
        proved = found is not None
        best = found if found is not None and found.cost < best.cost else best
    if not np.isfinite(best.cost):
        return Split(np.zeros(0, np.int64), np.inf, proved)
    return Split(to_devices(best, line.kind)[block], best.cost, proved)


def _by_orders(line: Pipeline, flow: Stream, first: csr_array, mixtures: int, rng: Generator) -> LinearSplit:
    keys = order_keys(flow, first)
    best = LinearSplit(np.inf, np.zeros(0, np.int64), np.zeros(0, np.int64))
    for key in keys:
        found = split_order(flow, line.kinds, topological(first, key), best.cost)
        best = found if found.cost < best.cost else best
    for i in range(mixtures):
        key = rng.dirichlet(np.full(len(keys), 0.3)) @ keys + rng.choice([0.0, 0.02, 0.1]) * rng.random(keys.shape[1])
        if i % 3 and np.isfinite(best.cost):  # keeps the runs, or lets neighbours overlap
            key = best.run + rng.choice([1.0, 1.5, 2.0]) * key
        found = split_order(flow, line.kinds, topological(first, key), best.cost)
        best = found if found.cost < best.cost else best
    return best


def order_keys(flow: Stream, first: csr_array) -> F64:
    """[orders, M] numbers in [0, 1) by which items can be ordered."""
    backwards = csr_array(first.T)
    orders = [
        np.arange(first.shape[0]),
        depth_first(first),
        depth_first(backwards)[::-1],
        narrow(flow, first),
        narrow(flow, backwards)[::-1] if len(flow.maker) else np.arange(first.shape[0]),
    ]
    values = [levels(first), -levels(backwards)]
    links = exchange(flow)
    values += [fiedler(links + 1e-6 * max(float(links.max()), 1e-30) * chain(first.shape[0]))] if links.nnz else []
    return np.stack([_ranks(order) for order in orders] + [_scaled(value) for value in values])


def _ranks(order: I64) -> F64:
    rank = np.empty(len(order))
    rank[order] = np.arange(len(order)) / len(order)
    return rank


def _scaled(value: F64) -> F64:
    spread = float(np.ptp(value))
    return (value - value.min()) / spread if spread > 0 else np.zeros(len(value))
